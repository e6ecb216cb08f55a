"""ConfigMaps with code, which jobs share and own: with the real garbage collector."""

import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client, Job
from ddpjob.cluster import CONFIGMAPS
from ddpjob.code import code_maps
from ddpjob.errors import Conflict, Forbidden, InvalidJob, NotFound
from ddpjob.names import GROUP
from tests.api.reading import client as client  # noqa: PLC0414
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.rights import account
from tests.waiting import wait_for

NAME = "ddpjob-code-3fa9c1d20b7e"


def config_map(content: bytes = b"code", name: str = NAME) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "immutable": True,
        "binaryData": {"code.tar.gz": b64encode(content).decode()},
    }


def stored(client: Client) -> dict[str, Any] | None:
    try:
        return client.connection.get(CONFIGMAPS, NAME)
    except NotFound:
        return None


def owners(client: Client) -> list[str]:
    found = stored(client) or {"metadata": {}}
    return sorted(owner["name"] for owner in found["metadata"].get("ownerReferences", ()))


def submitted(client: Client, name: str) -> Job:
    """A job as it would be with the ConfigMap as its code."""
    job = client.submit(job_object(name))
    job.body["spec"]["code"] = {"configMaps": [NAME], "sha256": "0" * 64}
    return job


def test_a_sweep_shares_one_and_leaves_none_behind(client: Client) -> None:
    names = [f"sweep-{number:02}" for number in range(20)]
    jobs = [submitted(client, name) for name in names]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda j: code_maps.provide(client.connection, j.body, [config_map()]), jobs))
    assert owners(client) == names
    for job in jobs[1:]:
        job.delete()
    # The garbage collector looks for new kinds, such as DDPJob, every 30 s.
    wait_for(lambda: owners(client) == ["sweep-00"])
    jobs[0].delete()
    wait_for(lambda: stored(client) is None)


def test_one_that_is_about_to_go_is_made_anew(client: Client) -> None:
    first, second = submitted(client, "first"), submitted(client, "second")
    body = config_map()
    body["metadata"]["finalizers"] = ["tests.ddpjob.dev/hold"]
    code_maps.provide(client.connection, first.body, [body])
    before = stored(client)
    assert before is not None
    path = CONFIGMAPS.path(client.namespace, NAME)
    client.connection.request("DELETE", path)

    def let_go() -> None:
        change = {"metadata": {"finalizers": None}}
        kind = "application/merge-patch+json"
        client.connection.request("PATCH", path, change, content_type=kind)

    threading.Timer(1.0, let_go).start()
    code_maps.provide(client.connection, second.body, [config_map()])
    after = stored(client)
    assert after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]
    assert owners(client) == ["second"]


def test_one_that_is_kept_while_it_is_deleted_is_not_waited_for_for_ever(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = submitted(client, "first"), submitted(client, "second")
    body = config_map()
    body["metadata"]["finalizers"] = ["tests.ddpjob.dev/hold"]
    code_maps.provide(client.connection, first.body, [body])
    path = CONFIGMAPS.path(client.namespace, NAME)
    client.connection.request("DELETE", path)
    monkeypatch.setattr(code_maps, "WAIT_SECONDS", 0.2)
    for given in ([config_map()], []):
        with pytest.raises(Conflict, match=f"{NAME} is being deleted"):
            code_maps.provide(client.connection, second.body, given)
    change = {"metadata": {"finalizers": None}}
    client.connection.request("PATCH", path, change, content_type="application/merge-patch+json")


def test_one_that_no_job_owns_stays_as_it_is(client: Client) -> None:
    client.connection.request("POST", CONFIGMAPS.path(client.namespace), config_map())
    job = submitted(client, "digits")
    code_maps.provide(client.connection, job.body, [config_map()])
    code_maps.provide(client.connection, job.body, [])
    assert owners(client) == []


def test_a_job_joins_the_owners_of_the_code_that_its_spec_names(client: Client) -> None:
    first, second = submitted(client, "first"), submitted(client, "second")
    for act in (code_maps.provide, code_maps.rehearse):
        with pytest.raises(InvalidJob, match=f"ConfigMap {NAME} does not exist") as refused:
            act(client.connection, second.body, [])
        assert refused.value.path == "spec.code.configMaps[0]"
    code_maps.provide(client.connection, first.body, [config_map()])
    code_maps.rehearse(client.connection, second.body, [])
    for _ in range(2):
        code_maps.provide(client.connection, second.body, [])
        assert owners(client) == ["first", "second"]


def test_who_may_not_change_the_job_changes_nothing_that_it_runs(
    api_server: ApiServer, namespace: str, client: Client, tmp_path: Path
) -> None:
    job = client.submit(job_object("digits"))
    rights = [(GROUP, "ddpjobs", ("get", "list", "watch")), ("", "configmaps", ("*",))]
    token = account(api_server, namespace, "guest", *rights)
    config = api_server.write_kubeconfig(tmp_path / "guest", token=token, namespace=namespace)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('mine')")
    with Client(kubeconfig=config) as guest:
        theirs = guest.job("digits")
        for change in ({"env": {"LR": "1"}}, {"code": tmp_path / "code"}):
            with pytest.raises(Forbidden, match="ddpjobs"):
                theirs.update(**change)
    assert client.job("digits").body["spec"] == job.body["spec"]


def test_a_rehearsal_stores_nothing(client: Client) -> None:
    job = submitted(client, "digits")
    code_maps.rehearse(client.connection, job.body, [config_map()])
    assert stored(client) is None
