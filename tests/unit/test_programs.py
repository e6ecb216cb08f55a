"""What agents get of an edited job: its code as ConfigMaps have it now, and no other archive."""

import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import CONFIGMAPS, Resource
from ddpjob.controller.children import Children
from ddpjob.controller.memory import Memory, job_record
from ddpjob.controller.programs import Programs
from ddpjob.errors import Unavailable
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.program import print_of
from tests.builders import job_object
from tests.localplay import NAMESPACE, Watched

ARCHIVE = b"one part, another part"
CODE = {"configMaps": ["one", "two"], "sha256": hashlib.sha256(ARCHIVE).hexdigest()}
OLD = {"revision": 1, "hash": "0" * 16, "round": 0}


class Pods:
    """Renders as `Children` does."""

    async def render(self, job: DDPJob) -> render.PodTemplate:
        return render.pods(job, render.Agent(b"agent"), Policy())


class Read(Watched):
    """Counts what is read."""

    gets, is_away = 0, False

    async def get(self, resource: Resource, namespace: str, name: str, **more: Any) -> Any:
        self.gets += resource == CONFIGMAPS
        if self.is_away:
            raise Unavailable(503, "ServiceUnavailable", "etcd is away")
        return await super().get(resource, namespace, name, **more)


@pytest.fixture
async def cluster() -> AsyncIterator[Read]:
    found = Read()
    for name, part in (("one", ARCHIVE[:9]), ("two", ARCHIVE[9:])):
        text = b64encode(part).decode()
        body = {"metadata": {"name": name}, "binaryData": {names.ARCHIVE_KEY: text}}
        await found.create(CONFIGMAPS, NAMESPACE, body)
    yield found


def edited(**code: Any) -> dict[str, Any]:
    """A job that runs something else than its status says."""
    body = job_object(args=["train.py"], code={**CODE, **code})
    body["metadata"] |= {"namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
    return {**body, "status": {"state": "Running", "attempt": 0, "program": OLD}}


async def checked(cluster: Read, memory: Memory, body: dict[str, Any]) -> str:
    """Why nothing comes of the edit; nothing if something does."""
    job = DDPJob.parse(body)
    await Programs(cluster, cast(Children, Pods())).check(job, memory)
    assert memory.rendered is not None
    assert memory.rendered.error is not None or memory.rendered.program not in ("", OLD["hash"])
    return str(memory.rendered.error or "")


async def test_the_archive_is_read_once_before_an_edit_counts(cluster: Read) -> None:
    memory = Memory()
    for _ in range(3):
        assert await checked(cluster, memory, edited()) == ""
    assert cluster.gets == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ({"configMaps": ["one", "three"]}, "spec.code.configMaps[1]: there is no ConfigMap three"),
        ({"configMaps": ["two", "one"]}, "spec.code.sha256: the archive's is "),
        ({"sha256": "1" * 64}, "spec.code.sha256: the archive's is "),
    ],
)
async def test_code_that_is_not_there_or_another_stops_no_rank(
    cluster: Read, code: dict[str, Any], words: str
) -> None:
    memory = Memory()
    assert words in await checked(cluster, memory, edited(**code))
    count = cluster.gets
    await checked(cluster, memory, edited(**code))
    assert cluster.gets == count, "it is looked for again a little later"
    waits = list[float]()
    for _ in range(9):
        assert memory.rendered is not None
        waits.append(memory.rendered.look_seconds)
        memory.rendered = replace(memory.rendered, at=memory.rendered.at - 301)
        await checked(cluster, memory, edited(**code))
        assert cluster.gets > count
        count = cluster.gets
    assert waits == pytest.approx([5, 10, 20, 40, 80, 160, 300, 300, 300], abs=1)


async def test_an_api_server_that_is_away_is_asked_again(cluster: Read) -> None:
    memory, cluster.is_away = Memory(), True
    assert "cannot be read: etcd is away" in await checked(cluster, memory, edited())
    assert memory.rendered is not None
    memory.rendered = replace(memory.rendered, at=memory.rendered.at - 6)
    cluster.is_away = False
    assert await checked(cluster, memory, edited()) == ""


async def test_an_agent_gets_what_was_ordered_or_nothing(cluster: Read) -> None:
    body, ours = edited(), Programs(cluster, cast(Children, Pods()))
    line = (await Pods().render(DDPJob.parse(body))).program
    record = job_record(body)
    assert await ours.content(record, print_of(line)) == line + b"\n" + ARCHIVE
    assert await ours.content(record, "0" * 16) == b"", "the job has been edited since"
    two = await cluster.get(CONFIGMAPS, NAMESPACE, "two")
    await cluster.delete(CONFIGMAPS, NAMESPACE, "two", uid=two["metadata"]["uid"])
    assert await ours.content(record, print_of(line)) == b""
