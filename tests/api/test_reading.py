"""The commands that read, against a real API server: in pipes and in a terminal."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiServer
from tests.terminal import Running, Terminal, ddpjob, environment


@pytest.fixture
def cluster(api_server: ApiServer, crd: None, namespace: str) -> Cluster:
    return Cluster(api_server, namespace)


@pytest.fixture
def env(api_server: ApiServer, namespace: str, tmp_path: Path) -> Mapping[str, str]:
    """The environment of an administrator whose context has the test's namespace."""
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, token=api_server.token, namespace=namespace)
    return environment(path)


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
    assert re.search(r"Unschedulable 12m\d?s?: 0/9 nodes are available: 9 Insufficient", rows[1])
    assert "2/2    1840/20000  3.021  2h4m  0 " in rows[2]


def test_get_in_a_terminal_cuts_lines_and_has_colours(
    cluster: Cluster, env: Mapping[str, str]
) -> None:
    cluster.failed("bert")
    with Terminal("get", env=env, columns=80) as terminal:
        ended = terminal.end()
    assert ended.code == 0
    assert all(len(line) <= 80 for line in ended.out.splitlines()) and "…" in ended.out
    assert "\x1b[31mFailed" in terminal.raw
    with Terminal("get", env={**env, "NO_COLOR": "1"}, columns=80) as terminal:
        terminal.end()
    assert "\x1b[31m" not in terminal.raw


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


def test_get_of_a_job_that_is_not_there(cluster: Cluster, env: Mapping[str, str]) -> None:
    ended = ddpjob("get", "nobody", env=env)
    assert ended.code == 3 and 'ddpjobs.ddpjob.dev "nobody" not found' in ended.err


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


def test_get_watches_in_a_terminal(cluster: Cluster, env: Mapping[str, str]) -> None:
    cluster.running("one")
    with Terminal("get", "-w", env=env) as terminal:
        terminal.until("1840/20000")
        cluster.delete("one")
        cluster.running("two")
        terminal.until("two")
        terminal.type("\x03")
        assert terminal.end().code == 130
    assert "Traceback" not in terminal.text


def test_a_missing_right_is_named_with_the_role_to_ask_for(
    api_server: ApiServer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    token = api_server.service_account_token(namespace, "nobody")
    path = api_server.write_kubeconfig(tmp_path / "k", token=token, namespace=namespace)
    ended = ddpjob("get", env=environment(path))
    assert ended.code == 4
    assert f"error: you may not list ddpjobs in namespace {namespace} (you are " in ended.err
    assert '  next: ask for the role "view" there' in ended.err
    everywhere = ddpjob("get", "-A", env=environment(path))
    assert everywhere.code == 4 and "in the whole cluster" in everywhere.err


def test_no_way_into_the_cluster_is_explained(tmp_path: Path, api_server: ApiServer) -> None:
    path = tmp_path / "config"
    missing = ddpjob("get", env=environment(path))
    assert (missing.code, missing.out) == (4, "")
    assert f"error: no kubeconfig: {path} does not exist\n  next: set KUBECONFIG" in missing.err
    api_server.write_kubeconfig(path, token="wrong")
    other = ddpjob("get", "--context", "prod", env=environment(path))
    assert other.code == 4 and "has no context prod; it has tests" in other.err
    wrong = ddpjob("get", env=environment(path))
    assert wrong.code == 4 and "does not accept the credentials of context tests" in wrong.err
    path.write_text("{")
    assert ddpjob("get", env=environment(path)).code == 4


def test_a_plugin_that_fails_is_named(api_server: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "config"
    api_server.write_kubeconfig(path, token="unused")
    config = json.loads(path.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "gone-plugin"}
    plugin["interactiveMode"] = "Never"
    config["users"][0]["user"] = {"exec": plugin}
    path.write_text(json.dumps(config))
    absent = ddpjob("get", env=environment(path))
    assert (
        absent.code == 4 and "the login plugin gone-plugin of the kubeconfig failed" in absent.err
    )
    script = tmp_path / "plugin"
    script.write_text("#!/bin/sh\necho no session, please log in >&2\nexit 3\n")
    script.chmod(0o755)
    plugin["command"] = str(script)
    path.write_text(json.dumps(config))
    failed = ddpjob("get", env=environment(path))
    assert failed.code == 4 and "no session, please log in" in failed.err
    good = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential"}
    good["status"] = {"token": api_server.token}  # type: ignore[assignment]
    script.write_text(f"#!/bin/sh\necho '{json.dumps(good)}'\n")
    assert ddpjob("get", env=environment(path)).code == 0
    assert os.access(script, os.X_OK)
