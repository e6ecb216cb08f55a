"""The way into a cluster: what can go wrong before the first request, and how it is said."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpjob.cluster.login import Login, log_in
from ddpjob.errors import LoginFailed


def config(**changes: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9/"}}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "ana", "namespace": "team"}},
            {"name": "two", "context": {"cluster": "c", "user": "bo"}},
        ],
        "users": [
            {"name": "ana", "user": {"token": "t1"}},
            {"name": "bo", "user": {"username": "bo", "password": "p"}},
        ],
        "current-context": "one",
        **changes,
    }


def write(path: Path, body: Any) -> Path:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def enter(tmp_path: Path, body: Any, context: str | None = None) -> Login:
    return log_in(context, write(tmp_path / "config", body))


def refused(tmp_path: Path, body: Any, context: str | None = None) -> LoginFailed:
    with pytest.raises(LoginFailed) as error:
        enter(tmp_path, body, context)
    return error.value


def test_the_context_says_server_namespace_and_user(tmp_path: Path) -> None:
    login = enter(tmp_path, config())
    assert (login.server, login.namespace, login.user) == ("https://127.0.0.1:9", "team", "ana")
    assert login.headers()["authorization"] == "Bearer t1"
    assert login.headers()["user-agent"].startswith("ddpjob/")
    other = enter(tmp_path, config(), "two")
    assert (other.namespace, other.user) == ("default", "bo")
    assert other.headers()["authorization"].startswith("Basic ")


def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", config(users=[], contexts=[]))
    second = write(tmp_path / "b", config(clusters=[]))
    monkeypatch.setenv("KUBECONFIG", f"{first}{os.pathsep}{tmp_path / 'gone'}{os.pathsep}{second}")
    assert log_in().user == "ana"


def test_without_a_file_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        LoginFailed, match=f"no kubeconfig: {tmp_path}/none does not exist"
    ) as error:
        log_in()
    assert "set KUBECONFIG or --kubeconfig" in error.value.advice
    with pytest.raises(LoginFailed, match="/other does not exist"):
        log_in(kubeconfig=tmp_path / "other")


def test_a_pod_without_a_token_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(LoginFailed, match="token file does not exist"):
        log_in()


def test_a_context_that_there_is_not_lists_those_that_there_are(tmp_path: Path) -> None:
    assert "has no context three; it has one, two" in str(refused(tmp_path, config(), "three"))
    without = refused(tmp_path, {**config(), "current-context": ""})
    assert "has no current context; it has one, two" in str(without)
    assert "kubectl config use-context" in without.advice


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "- a\n", "clusters: 7\n"),
        config(clusters=[]),
        config(
            users=[{"name": "ana", "user": {"client-certificate": "/gone", "client-key": "/g"}}]
        ),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, body: Any) -> None:
    assert str(tmp_path / "config") in str(refused(tmp_path, body))


def plugin(tmp_path: Path, script: str) -> dict[str, Any]:
    path = write(tmp_path / "plugin", f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    call = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}
    return config(users=[{"name": "ana", "user": {"exec": call}}])


def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, plugin(tmp_path, "echo 'please \033[31mlog in' >&2; exit 1"))
    assert "the login plugin of the kubeconfig failed" in str(error)
    assert "please \\x1b[31mlog in" in str(error) and "\x1b" not in str(error)
    gone = plugin(tmp_path, "")
    gone["users"][0]["user"]["exec"]["command"] = "/gone/plugin"
    assert "'/gone/plugin'" in str(refused(tmp_path, gone))


def test_a_plugins_token_is_used_and_renewed(tmp_path: Path) -> None:
    count = tmp_path / "count"
    answer = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
        "{\"token\": \"t'$(wc -l < COUNT | tr -d ' ')'\", "
        '"expirationTimestamp": "2020-01-01T00:00:00Z"}}'
    ).replace("COUNT", str(count))
    login = enter(tmp_path, plugin(tmp_path, f"echo x >> {count}; echo '{answer}'"))
    first = login.headers()["authorization"]
    assert login.headers()["authorization"] != first, "it has expired"
    (tmp_path / "plugin").write_text("#!/bin/sh\necho over >&2; exit 1\n")
    with pytest.raises(LoginFailed, match="over"):
        login.headers()
