"""`ddpjob submit` against a real API server: in pipes and in a terminal."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob import Client
from ddpjob.cluster import CONFIGMAPS
from ddpjob.documents import to_yaml
from tests.api.jobs import Jobs
from tests.api.processes import jobs as jobs  # noqa: PLC0414
from tests.api.reading import Cluster
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.rights import account
from tests.localplay import until
from tests.logproxy import Proxy
from tests.terminal import Ended, Running, Terminal, ddpjob, environment
from tests.waiting import wait_for

TRAIN = """\
import json, os, sys
from lib import scale
config = json.load(open("config.json"))
print("rank", os.environ["RANK"], "lr", scale(config["lr"]), sys.argv[1:], flush=True)
if config.get("crash") and os.environ["DDPJOB_ROUND"] == "0":
    sys.exit(3)
"""
IMAGE = ("--image", "torch:2.9")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a package of its own and a file that the script reads."""
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "lib" / "__init__.py").write_text("def scale(x):\n    return 2 * x\n")
    (folder / "config.json").write_text('{"lr": 0.5}')
    return folder


@pytest.fixture
def submit(
    project: Path, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Run the command in the project's folder."""
    monkeypatch.chdir(project)
    return lambda *words: ddpjob("submit", *words, env=env)


def all_jobs(cluster: Cluster) -> list[Any]:
    found: list[Any] = cluster.server.request("GET", cluster.jobs)["items"]
    return found


def code_maps(cluster: Cluster) -> list[Any]:
    items = cluster.server.request("GET", CONFIGMAPS.path(cluster.namespace))["items"]
    return [each for each in items if each["metadata"]["name"].startswith("ddpjob-code-")]


def test_a_script_is_sent_and_its_job_created(
    cluster: Cluster, submit: Callable[..., Ended]
) -> None:
    ended = submit("train.py", "--nnodes", "2", "--gpus", "8", *IMAGE, "--", "--lr", "3e-4")
    assert (ended.code, ended.out) == (0, "")
    (job,) = all_jobs(cluster)
    (config_map,) = code_maps(cluster)
    name, part = job["metadata"]["name"], config_map["metadata"]["name"]
    code, created, following = ended.err.splitlines()
    assert following.startswith("  next: ddpjob logs -f ")
    assert re.fullmatch(rf"code      3 files, \d+ B -> \d+ B, ConfigMap {part}", code)
    assert created == f"job       {cluster.namespace}/{name} created: 2 nodes x 8 GPUs"
    assert name.startswith("train-") and len(name) == len("train-k7x2p")
    assert job["metadata"]["annotations"] == {"ddpjob.dev/user": "admin"}
    spec = job["spec"]
    assert (spec["suspend"], spec["nnodes"]) == (False, 2)
    assert spec["args"] == ["train.py", "--lr", "3e-4"]
    assert spec["code"]["configMaps"] == [part]
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"] and config_map["immutable"] is True


def test_the_job_is_printed_for_scripts(cluster: Cluster, submit: Callable[..., Ended]) -> None:
    ended = submit("train.py", *IMAGE, "--name", "digits", "-o", "name")
    assert (ended.code, ended.out) == (0, "ddpjob.ddpjob.dev/digits\n")
    ended = submit("train.py", *IMAGE, "-o", "json")
    assert json.loads(ended.out)["metadata"]["namespace"] == cluster.namespace
    assert len(code_maps(cluster)) == 1  # both have the same code
    ended = submit("train.py", *IMAGE, "--name", "digits")
    assert ended.code == 5 and '"digits" already exists' in ended.err


def test_a_dry_run_prints_what_would_be_created(
    cluster: Cluster, submit: Callable[..., Ended]
) -> None:
    ended = submit("train.py", *IMAGE, "--name", "digits", "--dry-run", "-n", cluster.namespace)
    assert ended.code == 0 and ended.err.startswith("code      3 files")
    config_map, job = yaml.safe_load_all(ended.out)
    assert all_jobs(cluster) == [] and code_maps(cluster) == []
    cluster.server.kubectl("apply", "-f", "-", input=ended.out)
    assert all_jobs(cluster)[0]["spec"]["code"] == {**job["spec"]["code"], "mountPath": "/src"}
    # That one is nobody's: a job that comes later uses it, and leaves it as it is.
    assert submit("train.py", *IMAGE).code == 0
    assert "ownerReferences" not in code_maps(cluster)[0]["metadata"]


@pytest.mark.deep
def test_what_a_dry_run_prints_is_applied_validated_and_submitted(
    cluster: Cluster, env: Mapping[str, str], submit: Callable[..., Ended], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(submit("train.py", *IMAGE, "--name", "one", "--dry-run", "--", "-q", "y").out)
    valid = ddpjob("validate", "-f", str(file), "--server", env=env)
    assert (valid.code, valid.out, valid.err) == (0, f"{file}: ok\n", "")
    rehearsed = submit("-f", str(file), "--dry-run=server")
    assert rehearsed.code == 0 and "one would be created" in rehearsed.err
    assert all_jobs(cluster) == [] and code_maps(cluster) == []
    sent = submit("-f", str(file))
    (job,), (code,) = all_jobs(cluster), code_maps(cluster)
    assert job["spec"]["suspend"] is False and job["spec"]["args"] == ["train.py", "-q", "y"]
    assert [code["metadata"]["name"]] == job["spec"]["code"]["configMaps"]
    assert code["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert f"code      that of the job file, ConfigMap {code['metadata']['name']}" in sent.err
    again = ddpjob("validate", str(file), "--server", env=env)
    assert again.code == 0 and "one: exists already; whether it may be changed" in again.err
    with Client(cluster.namespace, kubeconfig=cluster.server.kubeconfig) as client:
        client.job("one").delete()
        assert client.submit(file).name == "one" and len(code_maps(cluster)) == 1
        client.job("one").delete()
    cluster.server.kubectl("apply", "-n", cluster.namespace, "-f", str(file))
    assert "unchanged" in cluster.server.kubectl("apply", "-n", cluster.namespace, "-f", str(file))


def test_validate_asks_the_server_for_what_only_a_cluster_knows(
    cluster: Cluster, env: Mapping[str, str], project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    good: Any = job_object("digits")
    file.write_text(to_yaml(good))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/ddpjobs.ddpjob.dev": "0"}}}
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    cluster.server.request("POST", path, quota)
    assert ddpjob("validate", str(file), env=env).code == 0
    wait_for(
        lambda: ddpjob("validate", str(file), "--server", env=env).code
    )  # it is admission's too
    ended = ddpjob("validate", str(file), "--server", env=env)
    words = f'{file}: digits: (server): ddpjobs.ddpjob.dev "digits" is forbidden: '
    assert (ended.code, ended.out) == (5, "") and ended.err.startswith(words)
    told = ddpjob("validate", str(file), "--server", "-o", "json", env=env)
    assert json.loads(told.out)["problems"][0]["field"] == "(server)" and told.code == 5
    cluster.server.request("DELETE", f"{path}/q")

    gone = {"configMaps": ["gone"], "sha256": "a" * 64}
    file.write_text(to_yaml(job_object("digits", code=gone)))
    ended = ddpjob("validate", str(file), "--server", env=env)
    assert ended.code == 2 and "spec.code.configMaps[0]: ConfigMap gone does not exist" in ended.err


def test_a_dry_run_on_a_terminal_cuts_the_archive(
    project: Path, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with Terminal("submit", "train.py", *IMAGE, "--dry-run", env=env) as terminal:
        ended = terminal.end()
    assert ended.code == 0 and "... (of " in ended.out
    assert re.search("name: train-[b-z2-9]{5}\n", ended.out)


def test_the_server_checks_a_dry_run(cluster: Cluster, submit: Callable[..., Ended]) -> None:
    ended = submit("train.py", *IMAGE, "--dry-run=server", "--name", "digits")
    words = f"job       {cluster.namespace}/digits would be created: 1 node x 1 process"
    assert ended.code == 0 and ended.out == "" and words in ended.err
    assert all_jobs(cluster) == [] and code_maps(cluster) == []
    cluster.job("digits")
    ended = submit("train.py", *IMAGE, "--dry-run=server", "--name", "digits")
    assert ended.code == 5 and "already exists" in ended.err


def test_wrong_options_are_named(
    cluster: Cluster, project: Path, submit: Callable[..., Ended]
) -> None:
    for words, text in (
        ([], "error: FILE.py: is required, or -m MODULE, or -f job.yaml"),
        (["train.py"], "error: spec.image: is required\n  next: --image IMAGE"),
        (["job.yaml", *IMAGE, "-f", "other.yaml"], "-f: name one job file, not 'job.yaml' too"),
        (["train.py", "-m", "x", *IMAGE], "give a script or a module, not both"),
        (["train.py", "--lr", "1"], "(the script's own arguments stand after --)"),
        (["train.py", *IMAGE, "--cpu", "many"], "spec.resources.limits.cpu"),
        (["-f", "gone.yaml"], "error: gone.yaml: cannot be read: No such file"),
    ):
        ended = submit(*words)
        assert ended.code == 2 and text in ended.err, ended.err
    (project / "outside").symlink_to("/")
    ended = submit("gone.py", *IMAGE)
    assert ended.code == 2 and "error: FILE.py: there is no file 'gone.py'" in ended.err
    (project / ".ddpjobignore").write_text("train.py\noutside\n")
    ended = submit("train.py", *IMAGE)
    assert ended.code == 2 and "leaves it out\n  next: --code-include train.py" in ended.err
    assert submit("train.py", *IMAGE, "--code-include", "train.py").code == 0
    assert len(all_jobs(cluster)) == 1


def test_a_job_file_with_options(
    cluster: Cluster, project: Path, submit: Callable[..., Ended]
) -> None:
    file = project / "job.yaml"
    file.write_text(
        "apiVersion: ddpjob.dev/v1alpha1\nkind: DDPJob\nmetadata: {name: digits}\n"
        "spec: {image: 'torch:2.9', args: [-m, ddptrain.native, --epochs, '2']}\n"
    )
    ended = submit("-f", "job.yaml", "--nnodes", "3", "--", "--epochs", "9")
    assert ended.code == 0 and "code " not in ended.err
    (job,) = all_jobs(cluster)
    assert job["metadata"]["name"] == "digits" and "code" not in job["spec"]
    assert job["spec"]["args"] == ["-m", "ddptrain.native", "--epochs", "9"]
    file.write_text(file.read_text().replace("digits}", "digits-2}"))
    gone = "spec: {code: {configMaps: [ddpjob-code-gone], sha256: " + "a" * 64 + "}, "
    file.write_text(file.read_text().replace("spec: {", gone))
    ended = submit("-f", "job.yaml")
    words = f"ConfigMap ddpjob-code-gone does not exist in namespace {cluster.namespace}"
    assert ended.code == 2 and f"{words}\n  next: send the folder itself: --code DIR" in ended.err
    assert submit("-f", "job.yaml", "--code", ".").code == 0


ALL = ["get", "list", "watch", "create", "update", "patch", "delete"]
# An installation's admission policy asks for the pods of who creates a job.
MAY = ("ddpjob.dev", "ddpjobs", ALL), ("", "pods", ["create"])


def test_who_may_not_create_config_maps_leaves_no_job_behind(
    cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    token = account(cluster.server, cluster.namespace, "user", *MAY)
    path = tmp_path / "config"
    cluster.server.write_kubeconfig(path, token=token, namespace=cluster.namespace)
    ended = ddpjob("submit", "train.py", *IMAGE, env=environment(path))
    assert ended.code == 4 and all_jobs(cluster) == []
    user = f"system:serviceaccount:{cluster.namespace}:user"
    words = f"you may not create configmaps in namespace {cluster.namespace} (you are {user})"
    assert f"error: {words}\n  next: ask " in ended.err and 'role "edit"' in ended.err
    rehearsed = ddpjob("submit", "train.py", *IMAGE, "--dry-run=server", env=environment(path))
    assert rehearsed.code == 4 and words in rehearsed.err
    assert ddpjob("submit", "train.py", *IMAGE, "--code", "none", env=environment(path)).code == 0


def test_a_process_that_is_killed_before_the_code_is_there(
    cluster: Cluster, submit: Callable[..., Ended], proxy: Proxy, proxied: Path
) -> None:
    proxy.held, proxy.is_slow = r"POST .*/configmaps", True
    with Running("submit", "train.py", *IMAGE, env=environment(proxied)) as running:
        assert proxy.holds.wait(60), running.err
        os.kill(running.process.pid, signal.SIGKILL)
        running.end()
    # It holds nothing, and its code can still be sent: as a new job.
    assert [job["spec"]["suspend"] for job in all_jobs(cluster)] == [True]
    assert submit("train.py", *IMAGE).code == 0


def test_a_terminal_shows_the_start_and_ctrl_c_detaches(
    cluster: Cluster, project: Path, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    words = ("submit", "train.py", "--name", "digits", "--nnodes", "2", *IMAGE)
    with Terminal(*words, env=env) as terminal:
        terminal.until("digits created: 2 nodes x 1 process")
        why = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
        summary = {"nodes": "0/2", "reason": f"Unschedulable: {why}"}
        cluster.status("digits", state="Starting", summary=summary)
        terminal.until(f"0/2 nodes: Unschedulable: {why}")
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert ended.out.endswith(
        "detached: the job runs on.\n"
        "  ddpjob logs -f digits  come back\n"
        "  ddpjob suspend digits  stop, keep the job\n"
        "  ddpjob delete digits   stop and remove\n"
    )
    assert all_jobs(cluster)[0]["spec"]["suspend"] is False


def test_a_job_that_no_operator_takes_is_noted(
    cluster: Cluster, submit: Callable[..., Ended], env: Mapping[str, str]
) -> None:
    with Running("submit", "train.py", "--watch", "--name", "digits", *IMAGE, env=env) as running:
        running.until("no operator has taken the job yet: see ddpjob doctor")
        cluster.status("digits", state="Failed", summary={"reason": "DeadlineExceeded"})
        ended = running.end()
    assert ended.code == 1 and "digits failed: DeadlineExceeded" in ended.err


@pytest.mark.deep
async def test_a_script_trains_with_its_package_and_is_restarted_from_the_cluster_alone(
    jobs: Jobs,
    project: Path,
    tmp_path: Path,
    api_server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, token=api_server.token, namespace=jobs.namespace)
    (project / "config.json").write_text('{"lr": 0.5, "crash": true}')
    words = ["train.py", "--name", "digits", "--nnodes", "2", "--max-restarts", "1", *IMAGE]
    words += ["--", "--lr"]
    ended = await asyncio.to_thread(ddpjob, "submit", *words, env=environment(path))
    assert ended.code == 0, ended.err
    for file in project.rglob("*.*"):  # the laptop is gone
        file.unlink()
    await jobs.in_state("Succeeded")
    log = (tmp_path / f"{jobs.namespace}.digits" / "logs" / "digits-0-1.log").read_text()
    assert log.count("rank 1 lr 1.0 ['--lr']") == 2
    await jobs.delete()

    async def is_gone() -> bool:
        listed = await jobs.client.request("GET", CONFIGMAPS.path(jobs.namespace))
        return not any(each["metadata"]["name"].startswith("ddpjob-") for each in listed["items"])

    await until(is_gone, every=0.5)


def test_a_status_of_the_time_before_its_code_ends_no_looking_on(
    cluster: Cluster, submit: Callable[..., Ended], env: Mapping[str, str]
) -> None:
    """A new job is suspended until its code is there, and its status says so for longer."""
    with Running("submit", "train.py", "--name", "digits", *IMAGE, "--watch", env=env) as running:
        wait_for(lambda: all_jobs(cluster) and not all_jobs(cluster)[0]["spec"].get("suspend"))
        cluster.status("digits", state="Suspended")
        time.sleep(1)
        assert running.process.poll() is None
        cluster.status("digits", state="Succeeded")
        ended = running.end()
    assert ended.code == 0 and "digits succeeded" in ended.err + ended.out
    assert "it starts with" not in ended.err
