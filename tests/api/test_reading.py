"""The commands that read, against a real API server: in pipes and in a terminal."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ddpjob import __version__, names
from tests.api.reading import Cluster, ago
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.tiers import ROOT, skipping_where_unavailable
from tests.terminal import Running, Terminal, ddpjob, environment


def test_get_prints_a_row_for_each_job(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("train-k7x2p")
    cluster.pending("sweep-lr3")
    cluster.failed("bert")
    ended = ddpjob("get", "--sort", "name", env=env)
    assert ended.code == 0 and ended.err == ""
    heading, *rows = ended.out.splitlines()
    assert " ".join(heading.split()) == "NAME STATE NODES STEP LOSS ETA RESTARTS AGE REASON"
    assert [row.split()[:2] for row in rows] == [
        ["bert", "Failed"],
        ["sweep-lr3", "Starting"],
        ["train-k7x2p", "Running"],
    ]
    assert "MaxRestartsExceeded: ExitCode r5 gpu-17: RuntimeError: CUDA" in rows[0]
    assert re.search(
        r"Unschedulable 1[2-9]m(\d+s)?: 0/9 nodes are available: 9 Insufficient", rows[1]
    )
    assert "2/2    1840/20000  3.021  2h4m  0 " in rows[2]


def test_get_selects(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("mine")
    cluster.job("hers", user="ana")

    def got(*options: str) -> list[str]:
        ended = ddpjob("get", *options, "-o", "name", env=env)
        assert ended.code == 0, ended.err
        return [line.removeprefix("ddpjob.ddpjob.dev/") for line in ended.out.split()]

    assert sorted(got()) == ["hers", "mine"]
    assert got("--mine") == ["mine"]
    assert got("--state", "running,Failed") == ["mine"]
    assert got("-l", "team=ana") == ["hers"]
    assert got("ddpjob.ddpjob.dev/hers", "mine") == ["hers", "mine"]
    assert {"hers", "mine"} <= set(got("-A"))
    none = ddpjob("get", "--state", "Failed", env=env)
    assert (none.code, none.out) == (0, "") and "no such jobs in namespace" in none.err


def test_get_prints_objects(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    single = json.loads(ddpjob("get", "one", "-o", "json", env=env).out)
    assert single["metadata"]["name"] == "one" and "managedFields" not in single["metadata"]
    listed = json.loads(ddpjob("get", "-o", "json", env=env).out)
    assert listed["kind"] == "List" and listed["items"] == [single]
    assert yaml.safe_load(ddpjob("get", "one", "-o", "yaml", env=env).out) == single


def test_an_object_cannot_move_the_cursor(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.failed("bad", message="\x1b]0;owned\x07\u202eevil\x9b31m\nFAKE line", node="\x1b[2J")
    for output in ("table", "wide", "json", "yaml", "name"):
        with Terminal("get", "-o", output, env={**env, "NO_COLOR": "1"}) as terminal:
            assert terminal.end().code == 0
        assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(terminal.raw), output
        assert "\nFAKE" not in terminal.raw.replace("\r", "")


def test_get_watches(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    with Running("get", "-w", env=env) as running:
        running.until("1840/20000")
        cluster.status("one", summary={"step": "1850/20000"})
        running.until("1850/20000")
        cluster.pending("two")
        running.until("Unschedulable")
        running.interrupt()
        ended = running.end()
    assert ended.code == 130
    assert ended.out.splitlines()[0].startswith("NAME ") and ended.out.count("NAME ") == 1


def test_get_watches_objects(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    with Running("get", "one", "-w", "-o", "json", env=env) as running:
        running.until("1840/20000")
        cluster.running("another")
        cluster.status("one", state="Succeeded")
        running.until('"Succeeded"')
        running.interrupt()
        ended = running.end()
    objects = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["metadata"]["name"] for each in objects] == ["one", "one"]
    assert [each["status"]["state"] for each in objects] == ["Running", "Succeeded"]


def test_get_watches_in_a_terminal(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    with Terminal("get", "-w", env=env) as terminal:
        terminal.until("1840/20000")
        cluster.delete("one")
        cluster.running("two")
        terminal.until("two")
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130 and "Traceback" not in terminal.text
    assert ended.out.endswith("\ndetached: the jobs run on\n")


# describe


def test_describe_tells_the_first_cause_and_the_next_command(
    cluster: Cluster, namespace: str, env: Mapping[str, str]
) -> None:
    cluster.failed("bert")
    ended = ddpjob("describe", "bert", "-n", namespace, env=env)
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert lines[0].startswith(f"bert  {namespace}  Failed  image trainer:1")
    assert "rank 5 (node 2, bert-2-2 on gpu-17) exit 1: RuntimeError: CUDA error" in ended.out
    assert f"next      ddpjob logs bert -n {namespace} --attempt 2 --rank 5" in lines
    assert lines[-1].endswith("/docs/reasons.md#exitcode")
    record = json.loads(ddpjob("describe", "bert", "-o", "json", env=env).out)
    assert record["cause"]["rank"] == 5 and record["state"] == "Failed"


def test_describe_has_the_jobs_events(
    api_server: ApiServer, cluster: Cluster, namespace: str, env: Mapping[str, str]
) -> None:
    job = cluster.pending("sweep")
    of = {"kind": "DDPJob", "name": "sweep", "namespace": namespace, "uid": job["metadata"]["uid"]}
    event = {"metadata": {"name": "e1"}, "involvedObject": of, "type": "Warning", "count": 1}
    event |= {
        "reason": "Unschedulable",
        "message": "no \x1b[2J room",
        "lastTimestamp": ago(minutes=5),
    }
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/events", event)
    other = {**event, "metadata": {"name": "e2"}, "involvedObject": {**of, "uid": "an-earlier-one"}}
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/events", other)
    out = ddpjob("describe", env=env).out
    assert [line for line in out.splitlines() if line.startswith("event")] == [
        next(
            line
            for line in out.splitlines()
            if "ago" in line and "Unschedulable: no \\x1b[2J" in line
        )
    ]
    assert "why now   Unschedulable: 0/9 nodes are available" in out


# wait


def test_wait_ends_with_the_result_of_all(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    cluster.pending("two")
    with Running("wait", "one", "two", env=env) as running:
        running.until("0/2 nodes  Unschedulable 12m")
        cluster.status("one", state="Succeeded")
        running.until("one Succeeded")
        cluster.delete("one")  # as `ttlSecondsAfterFinished` has it
        cluster.status("two", state="Restarting")
        running.until("two  Restarting")
        cluster.status("two", state="Failed")
        ended = running.end()
    assert ended.code == 1 and ended.out == "one Succeeded\ntwo Failed\n"


def test_wait_for_a_step_and_for_any(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    cluster.pending("two")
    cluster.status("one", progress={"attempt": 0, "round": 0, "step": 1840})
    there = ddpjob("wait", "one", "--for", "step=1000", "-o", "json", env=env)
    assert there.code == 0 and json.loads(there.out)["step"] == 1840
    any_ = ddpjob("wait", "one", "two", "--for", "running", "--any", env=env)
    assert (any_.code, any_.out) == (0, "one Running\n")


def test_ctrl_c_leaves_the_job_alone(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    with Terminal("wait", "one", env=env) as terminal:
        terminal.until("one  Running")
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert "detached: the job runs on.\n  ddpjob wait one     come back\n" in ended.out
    with Terminal("wait", "one", "--for=step=9", "--any", env=env) as terminal:
        terminal.until("one  Running")
        terminal.type("\x03")
        ended = terminal.end()
    assert "  ddpjob wait one --for step=9 --any  come back\n" in ended.out


def test_no_job_of_mine(cluster: Cluster, namespace: str, env: Mapping[str, str]) -> None:
    cluster.job("hers", user="ana")
    for verb in ("wait", "logs", "describe"):
        ended = ddpjob(verb, env=env)
        assert ended.code == 3
        assert f"error: no job of admin in namespace {namespace}\n  next: name one" in ended.err


# completion, and version


def test_names_and_commands_are_completed(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.job("train-1")
    cluster.job("other")
    words = {"_DDPJOB_COMPLETE": "complete_bash", "COMP_WORDS": "ddpjob logs tr", "COMP_CWORD": "2"}
    assert ddpjob(env={**env, **words}).out.split() == ["train-1"]
    words |= {"COMP_WORDS": "ddpjob des", "COMP_CWORD": "1"}
    assert ddpjob(env={**env, **words}).out.split() == ["describe"]


@pytest.mark.deep
def test_version_tells_what_the_cluster_has(
    api_server: ApiServer, cluster: Cluster, namespace: str, env: Mapping[str, str]
) -> None:
    alone = ddpjob("version", "--client", env=env)
    assert (alone.code, alone.out) == (0, f"client    {__version__}\n")
    away = ddpjob("version", env=environment())
    assert away.code == 0 and "server    unknown: no kubeconfig" in away.out
    labels = {"app.kubernetes.io/name": "ddpjob", "app.kubernetes.io/component": "operator"}
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "o", "image": "i"}]}}
    deployment = {
        "metadata": {"name": "op", "labels": {**labels, "app.kubernetes.io/version": "1.4.0"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pods},
    }
    api_server.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
    there = ddpjob("version", env=env)
    assert f"1.4.0 not ready (0 of 0) in {namespace}" in there.out
    assert "API       ddpjobs.ddpjob.dev v1alpha1\n" in there.out
    record = json.loads(ddpjob("version", "-o", "json", env=env).out)
    assert record["client"] == __version__ and record["api"]["versions"] == ["v1alpha1"]
    operators = [each for each in record["operators"] if each["namespace"] == namespace]
    assert operators == [{"version": "1.4.0", "namespace": namespace, "ready": 0, "replicas": 0}]
    token = api_server.service_account_token(namespace, "nobody")
    path = api_server.write_kubeconfig(Path(env["KUBECONFIG"]).with_name("n"), token=token)
    plain = ddpjob("version", env=environment(path))
    assert "unknown: you may not list deployments in the whole cluster" in plain.out


@pytest.mark.deep
def test_a_cluster_without_ddpjob_and_one_with_another_version(tmp_path: Path) -> None:
    with skipping_where_unavailable():
        server = ApiServer(scheduler=False, controller_manager=False)
    with server:
        env = environment(server.kubeconfig)
        for verb in ("get", "doctor"):
            ended = ddpjob(verb, env=env)
            assert ended.code == 3, ended.err
            assert "this cluster has no DDPJob API (ddpjobs.ddpjob.dev)\n" in ended.out + ended.err
            assert "  next: ask your admin to install ddpjob" in ended.out + ended.err
        assert "ddpjob is not installed in this cluster" in ddpjob("version", env=env).out
        crd = yaml.safe_load((ROOT / "charts/ddpjob/files/crd.yaml").read_text())
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        removed = schema["spec"]["properties"].pop("ttlSecondsAfterFinished")
        goodput = schema["status"]["properties"].pop("goodput")
        (tmp_path / "crd.yaml").write_text(yaml.safe_dump(crd))
        server.install_crd(tmp_path / "crd.yaml")
        older = ddpjob("version", env=env).out
        assert (
            "older than this client, without spec.ttlSecondsAfterFinished, status.goodput" in older
        )
        assert "operator  none in this cluster: jobs stay Pending" in older
        told = ddpjob("doctor", "--admin", env=env).out
        words = f"warn  API ddpjobs.ddpjob.dev v1alpha1 is older than this ddpjob ({__version__})"
        assert f"{words}, without spec.ttlSecondsAfterFinished" in told
        assert f"warn  the definition of DDPJob is not that of {__version__}" in told
        assert 'warn  the role "edit" does not include DDPJobs' in told
        assert "warn  whoever may create DDPJobs has the operator create pods" in told
        schema["spec"]["properties"] |= {
            "ttlSecondsAfterFinished": removed,
            "wings": {"type": "string"},
        }
        schema["status"]["properties"]["goodput"] = goodput
        (tmp_path / "crd.yaml").write_text(yaml.safe_dump(crd))
        server.install_crd(tmp_path / "crd.yaml")

        def newer() -> bool:
            return "does not know spec.wings" in ddpjob("version", env=env).out

        assert any(newer() for _ in range(20)), "its schema takes a moment to be explained"
        jobs = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
        server.request("POST", jobs, job_object("digits"))
        described = ddpjob("describe", "digits", env=env)
        assert described.code == 0 and "digits  default  Pending for" in described.out


def test_plot_draws_the_curve_of_the_status_with_its_restarts(
    cluster: Cluster, env: Mapping[str, str]
) -> None:
    cluster.running("train-k7x2p")
    curve = [[step, 100 / step, 400.5] for step in range(10, 200, 10)]
    ended_at = {"attempt": 0, "endTime": ago(minutes=5), "reason": "Exception", "step": 90}
    cluster.status("train-k7x2p", curve=curve, history=[ended_at])
    ended = ddpjob("plot", "train-k7x2p", env=env)
    assert ended.code == 0 and ended.err == ""
    assert ended.out.splitlines()[0].split() == ["loss", "┊", "restart"]
    newest = ddpjob("plot", "--metric", "samplesPerSecond", "--svg", "-", env=env)
    assert newest.code == 0 and "train-k7x2p: your newest job" in newest.err
    assert "<svg" in newest.out and "train-k7x2p" in newest.out and "1 restart<" in newest.out
