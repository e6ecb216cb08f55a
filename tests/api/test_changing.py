"""The commands that change jobs, against a real API server: in pipes and in a terminal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob.cluster import PODS
from tests.api.reading import Cluster, condition
from tests.terminal import Running, Terminal, ddpjob
from tests.waiting import wait_for


def stored(cluster: Cluster, name: str) -> Any:
    return cluster.server.request("GET", f"{cluster.jobs}/{name}")


def suspended(cluster: Cluster, name: str, **spec: Any) -> None:
    """A job that is suspended, as an operator would have left it."""
    cluster.job(name, suspend=True, **spec)
    cluster.status(
        name, state="Suspended", conditions=[condition("Suspended", "True", "Suspended")]
    )


def test_a_job_is_suspended(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("digits")
    ended = ddpjob("suspend", "digits", env=env)
    words = "digits suspends: its ranks may save, then its pods end\n"
    assert (ended.code, ended.out, ended.err) == (0, words, "")
    assert stored(cluster, "digits")["spec"]["suspend"] is True
    with Running("suspend", "digits", "--wait", env=env) as waiting:
        waiting.until("waiting until its pods have ended")
        cluster.status("digits", state="Suspended")
        ended = waiting.end()
    assert (ended.code, ended.out) == (0, "digits is suspended\n")
    ended = ddpjob("suspend", "ddpjob.ddpjob.dev/digits", "-o", "json", env=env)
    assert json.loads(ended.out)["metadata"]["name"] == "digits"
    assert ddpjob("suspend", "digits", "-o", "name", env=env).out == "ddpjob.ddpjob.dev/digits\n"


def test_a_finished_job_is_neither_suspended_nor_resumed(
    cluster: Cluster, env: Mapping[str, str]
) -> None:
    cluster.failed("bert")
    for verb, advice in (("suspend", "ddpjob delete bert"), ("resume", "ddpjob rerun bert")):
        ended = ddpjob(verb, "bert", env=env)
        assert (ended.code, ended.out) == (5, "")
        assert "error: bert has failed; a finished job never starts again" in ended.err
        assert f"next: {advice}" in ended.err
    assert (
        "suspend" not in stored(cluster, "bert")["spec"]
        or not stored(cluster, "bert")["spec"]["suspend"]
    )


def test_a_job_is_resumed_changed(cluster: Cluster, env: Mapping[str, str]) -> None:
    suspended(cluster, "digits", env=[{"name": "LR", "value": "0.1"}])
    changes = ["--set", "nnodes=4", "--set", "env.LR=0.3", "--exclude-node", "gpu-17"]
    ended = ddpjob("resume", "digits", *changes, env=env)
    assert (ended.code, ended.out, ended.err) == (0, "digits resumes\n", "")
    spec = stored(cluster, "digits")["spec"]
    assert (spec["suspend"], spec["nnodes"]) == (False, 4)
    assert spec["env"] == [{"name": "LR", "value": "0.3"}]
    assert "gpu-17" in json.dumps(spec["template"])


def test_resume_waits_until_the_job_runs(cluster: Cluster, env: Mapping[str, str]) -> None:
    suspended(cluster, "digits")
    with Running("resume", "digits", "--wait", env=env) as waiting:
        wait_for(lambda: not stored(cluster, "digits")["spec"]["suspend"])
        cluster.status("digits", state="Running")
        ended = waiting.end()
    assert (ended.code, ended.out) == (0, "digits is running\n")
    ended = ddpjob("resume", "digits", env=env)
    assert ended.code == 0 and "digits was not suspended" in ended.err


def test_a_running_job_is_not_changed(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("digits")
    ended = ddpjob("resume", "digits", "--set", "nnodes=4", env=env)
    assert ended.code == 5 and ended.err == (
        "error: digits is Running; its spec can change only while it is suspended\n"
        "  next: ddpjob suspend digits --wait\n"
    )
    ddpjob("suspend", "digits", env=env)
    with Running("resume", "digits", "--set", "nnodes=4", env=env) as waiting:
        waiting.until("digits is Running: waiting until its pods have ended")
        cluster.status("digits", state="Suspended")
        assert waiting.end().code == 0
    assert stored(cluster, "digits")["spec"]["nnodes"] == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--exclude-node", "a/b"], "--exclude-node: must be the name of a node, got 'a/b'"),
        (["--set", "nnodes=0"], "spec.nnodes: Invalid value: 0"),
    ],
)
def test_wrong_changes_are_refused(
    cluster: Cluster, env: Mapping[str, str], options: list[str], words: str
) -> None:
    suspended(cluster, "digits")
    for verb in ("resume", "rerun"):
        ended = ddpjob(verb, "digits", *options, env=env)
        assert ended.code == 2 and words in ended.err, ended.err
    assert stored(cluster, "digits")["spec"]["suspend"] is True
    assert len(cluster.server.request("GET", cluster.jobs)["items"]) == 1


def test_a_rerun_has_other_arguments_and_a_dry_run(
    cluster: Cluster, env: Mapping[str, str], tmp_path: Path
) -> None:
    cluster.job("bert", args=["train.py", "--lr", "1"])
    cluster.job("bert-2", launcher="none")
    asked = ("rerun", "bert", "--set", "nnodes=1", "--dry-run")
    words = ("--", "--lr", "2", "--", "-n")
    ended = ddpjob(*asked, *words, env=env)
    assert ended.code == 0, ended.err
    file = tmp_path / "job.yaml"
    file.write_text(ended.out)
    printed = yaml.safe_load(ended.out)
    assert printed["metadata"]["name"] == "bert-3" and "uid" not in printed["metadata"]
    spec = {**stored(cluster, "bert")["spec"], "args": ["train.py", *words[1:]], "nnodes": 1}
    assert printed["spec"] == {k: v for k, v in spec.items() if k != "suspend"}
    assert ddpjob(*asked, "-o", "name", env=env).out == "ddpjob.ddpjob.dev/bert-3\n"
    listed = json.loads(ddpjob(*asked, "-o", "json", *words, env=env).out)
    assert listed["items"] == [printed]
    ended = ddpjob("rerun", "bert", "--dry-run=server", env=env)
    assert (ended.code, ended.out) == (0, "bert-3 would be created, like bert\n")
    found = json.loads(ddpjob("rerun", "bert", "--dry-run=server", "-o", "json", env=env).out)
    assert found["metadata"]["uid"] and found["spec"]["args"] == ["train.py", "--lr", "1"]
    assert not cluster.server.exists(f"{cluster.jobs}/bert-3")
    assert ddpjob("submit", "-f", str(file), env=env).code == 0
    assert ddpjob("rerun", "bert", *words, env=env).out == "bert-4 created, like bert\n"
    for name in ("bert-3", "bert-4"):
        assert stored(cluster, name)["spec"]["args"] == ["train.py", *words[1:]]


def test_wrong_reruns_are_refused(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.job("bert", command=["./train"], args=[])
    for words, problem in (
        (["--", "-q"], "spec.args: is empty, so there is no script that takes other arguments"),
        (["--lr", "2"], "(the script's own arguments stand after --)"),
        (["--dry-run", "--name", "bert"], '"bert" already exists'),
        (["--dry-run", "--set", "nnodes=0"], "spec.nnodes: Invalid value: 0"),
    ):
        ended = ddpjob("rerun", "bert", *words, env=env)
        assert ended.code in (2, 5) and problem in ended.err and not ended.out, ended.err
    assert len(cluster.server.request("GET", cluster.jobs)["items"]) == 1


def test_deletion_asks_on_a_terminal(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("digits")
    for keys, code, last in (
        ("n\n", 130, "nothing was deleted"),
        ("\x03", 130, "nothing was deleted"),
        ("y\n", 0, "digits deleted"),
    ):
        assert stored(cluster, "digits")
        with Terminal("delete", "digits", env=env) as terminal:
            terminal.until("delete this job, its pods and their logs? [y/N]:")
            terminal.type(keys)
            ended = terminal.end()
        assert ended.code == code and ended.out.endswith(f"{last}\n")
        assert f"digits  Running  in namespace {cluster.namespace}" in ended.out
    assert not cluster.server.exists(f"{cluster.jobs}/digits")


def test_deletion_in_a_pipe_needs_yes(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    cluster.running("two")
    ended = ddpjob("delete", "one", "two", env=env)
    assert ended.code == 2 and "--yes: needed, as there is no terminal" in ended.err
    ended = ddpjob("delete", "one", "gone", "-y", env=env)
    assert ended.code == 3 and '"gone" not found' in ended.err
    assert stored(cluster, "one")
    ended = ddpjob("delete", "one", "two", "-y", env=env)
    assert (ended.code, ended.out) == (0, "one deleted\ntwo deleted\n")
    cluster.running("twice")
    ended = ddpjob("delete", "twice", "ddpjob/twice", "-y", env=env)
    assert (ended.code, ended.out) == (0, "twice deleted\n")
    assert ddpjob("delete", env=env).code == 2
    cluster.running("three")
    ended = ddpjob("delete", "three", "-y", "-o", "name", env=env)
    assert (ended.code, ended.out) == (0, "ddpjob.ddpjob.dev/three\n")
    assert ddpjob("delete", "three", "-y", "-o", "json", env=env).code == 2


def test_a_sweep_is_submitted_sorted_and_deleted_by_its_label(
    cluster: Cluster, env: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    for name, loss in (("low", "0.5"), ("none", None), ("lower", "1e-03")):
        args = ["train.py", "--image", "i", "--name", name, "--label", "team.example/sweep=lr"]
        ended = ddpjob("submit", *args, "--code", "none", env=env, cwd=tmp_path)
        assert ended.code == 0 and f"next: ddpjob logs -f {name}" in ended.err
        cluster.status(name, state="Succeeded", summary={"loss": loss} if loss else {})
    cluster.running("other")
    place = ("-n", cluster.namespace)  # before the command, as kubectl has it
    ended = ddpjob(*place, "get", "-l", "team.example/sweep", "--sort", "loss", env=env)
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["lower", "low", "none"]
    ended = ddpjob("plot", "none", env=env)
    assert ended.code == 2 and "none: has no loss; docs/progress.md" in ended.err
    sweep = ("delete", "-y", "-l", "team.example/sweep=lr")
    assert ddpjob(*sweep, "other", env=env).code == 2
    ended = ddpjob(*sweep, env=env)
    assert ended.code == 0 and sorted(ended.out.splitlines()) == [
        f"{name} deleted" for name in ("low", "lower", "none")
    ]
    assert "has the labels" in ddpjob(*sweep, env=env).err and stored(cluster, "other")


def test_deletion_waits_until_the_pods_are_gone(cluster: Cluster, env: Mapping[str, str]) -> None:
    job = cluster.job("digits")
    pods, uid = PODS.path(cluster.namespace), job["metadata"]["uid"]
    cluster.pod(job, 0)
    change: Any = {"metadata": {"finalizers": ["tests.ddpjob.dev/hold"]}}
    cluster.server.request("PATCH", f"{pods}/digits-0-0", change, kind="merge-patch+json")
    # Somebody else's, which nobody waits for.
    metadata = {"name": "digits-0-1", "labels": {"ddpjob.dev/job-uid": uid}}
    body = {"metadata": metadata, "spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    cluster.server.request("POST", pods, body)
    with Running("delete", "digits", "-y", "--wait", env=env) as waiting:
        waiting.until("waiting until the pods of digits are gone")
        cluster.server.request("DELETE", f"{pods}/digits-0-0", {"gracePeriodSeconds": 0})
        assert waiting.process.poll() is None
        change = {"metadata": {"finalizers": None}}
        cluster.server.request("PATCH", f"{pods}/digits-0-0", change, kind="merge-patch+json")
        assert waiting.end().code == 0
