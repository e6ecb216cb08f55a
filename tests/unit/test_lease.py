"""Electors on the embedded cluster: taking over, giving up, and what a replica does meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn

import pytest
from aiohttp import web

from ddpjob.cluster import DDPJOBS, LEASES, PODS, SERVICES, Resource
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from ddpjob.controller.election import Terms
from ddpjob.controller.lease import Elector
from ddpjob.errors import Unavailable
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from tests.cluster.webserver import serving
from tests.localplay import until

TERMS = Terms(lease=1.0, deadline=0.5, retry=0.02)
PATIENT = Terms(lease=3600.0, deadline=1800.0, retry=0.02)


class Left(BaseException):
    """Where the process would have ended."""


def leave(why: str) -> NoReturn:
    raise Left(why)


def elector(cluster: Any, identity: str, terms: Terms = TERMS) -> Elector:
    return Elector(cluster, "system", "operator", identity=identity, terms=terms, leave=leave)


@contextlib.asynccontextmanager
async def running(*electors: Elector) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(each.run()) for each in electors]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def leads(one: Elector) -> None:
    async with asyncio.timeout(200):
        await one.leading.wait()


async def holder(cluster: LocalCluster) -> str:
    lease = await cluster.get(LEASES, "system", "operator")
    return str(lease["spec"].get("holderIdentity", ""))


async def ends(task: asyncio.Task[None]) -> str:
    """Why the process would have ended."""
    with pytest.raises(Left) as left:
        async with asyncio.timeout(200):
            await task
    return str(left.value)


async def test_one_leads_and_the_other_follows_when_it_is_released() -> None:
    cluster = LocalCluster()
    a, b = elector(cluster, "a", PATIENT), elector(cluster, "b", PATIENT)
    async with running(a):
        await leads(a)
        async with running(b):
            await asyncio.sleep(0.2)
            assert not b.leading.is_set() and await holder(cluster) == "a"
            a.check()
            with pytest.raises(Left):
                b.check()
            await a.release()
            with pytest.raises(Left):
                a.check()
            await leads(b)  # an hour before the Lease would expire
    lease = await cluster.get(LEASES, "system", "operator")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 2)


class Connection:
    """One candidate's own; answers nothing, or with errors, while told so."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster, self.mode = cluster, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        if self.mode == "silent":
            await asyncio.Event().wait()
        if self.mode == "failing":
            raise Unavailable(500, "InternalError", "out of sorts")
        return await self._cluster.update(resource, namespace, body)


@pytest.mark.parametrize("mode", ["silent", "failing"])
async def test_who_cannot_renew_ends_at_the_deadline_before_another_leads(mode: str) -> None:
    cluster = LocalCluster()
    connection, terms = Connection(cluster), Terms(lease=5.0, deadline=0.5, retry=0.02)
    a, b = elector(connection, "a", terms), elector(cluster, "b", terms)
    async with running(a) as (task,):
        await leads(a)
        async with running(b):
            connection.mode = mode
            assert "could not be renewed" in await ends(task)
            assert not b.leading.is_set()
            with pytest.raises(Left):
                a.check()
            await leads(b)


async def test_an_outage_shorter_than_the_deadline_changes_nothing() -> None:
    cluster = LocalCluster()
    connection = Connection(cluster)
    a = elector(connection, "a", Terms(lease=60, deadline=30, retry=0.02))
    async with running(a) as (task,):
        await leads(a)
        connection.mode = "failing"
        await asyncio.sleep(0.2)
        connection.mode = ""
        before = await cluster.get(LEASES, "system", "operator")

        async def renewed() -> bool:
            return await cluster.get(LEASES, "system", "operator") != before

        await until(renewed)
        assert not task.done()
        a.check()


async def test_a_lease_that_somebody_deletes_or_edits_stays_the_holder_s() -> None:
    cluster = LocalCluster()
    a = elector(cluster, "a", PATIENT)
    async with running(a) as (task,):
        await leads(a)
        await cluster.patch(LEASES, "system", "operator", {"metadata": {"labels": {"x": "y"}}})
        await asyncio.sleep(0.1)
        lease = await cluster.get(LEASES, "system", "operator")
        await cluster.delete(LEASES, "system", "operator", uid=lease["metadata"]["uid"])

        async def there() -> bool:
            found = (await cluster.list(LEASES, namespace="system")).items
            return bool(found)

        await until(there)
        assert await holder(cluster) == "a" and not task.done()


class Forgetful(LocalCluster):
    """Stores a renewal, and its answer never comes."""

    forgets = False

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        stored = await super().update(resource, namespace, body)
        if self.forgets and body["spec"].get("holderIdentity"):
            await asyncio.Event().wait()
        return stored


async def test_a_renewal_that_is_stored_unseen_does_not_keep_the_lease_from_being_released() -> (
    None
):
    cluster = Forgetful()
    a = elector(cluster, "a", PATIENT)
    async with running(a):
        await leads(a)
        before = await cluster.get(LEASES, "system", "operator")
        cluster.forgets = True

        async def stored() -> bool:
            return await cluster.get(LEASES, "system", "operator") != before

        await until(stored)
    await a.release()
    assert await holder(cluster) == ""


@contextlib.asynccontextmanager
async def server_that_waits_for(answers: asyncio.Event) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers nothing before that; its URL, and what has arrived."""
    arrived: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        arrived.append(f"{request.method} {request.path}")
        await answers.wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serving(app) as port:
        yield f"http://127.0.0.1:{port}", arrived


async def test_no_write_is_sent_after_the_lease_is_lost_not_even_one_that_waited_in_line() -> None:
    answers, fallen = asyncio.Event(), False

    def fence() -> None:
        if fallen:
            raise Left

    async with server_that_waits_for(answers) as (url, arrived):
        cluster = KubeCluster(Credentials(url), in_flight=1, fence=fence)
        first = asyncio.create_task(cluster.create(SERVICES, "team", {}))
        await until(lambda: arrived)
        body = {"metadata": {"name": "x", "uid": "u"}}
        waiting = [
            asyncio.ensure_future(write)
            for write in (
                cluster.create(PODS, "team", {}),
                cluster.delete(PODS, "team", "x", uid="u"),
                cluster.patch(PODS, "team", "x", body),
                cluster.update(PODS, "team", body),
                cluster.update_status(DDPJOBS, "team", body),
            )
        ]
        await asyncio.sleep(0)
        fallen = True
        answers.set()
        await first
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [Left] * 5
        await cluster.list(PODS, namespace="team")  # reads pass
        assert arrived == [
            "POST /api/v1/namespaces/team/services",
            "GET /api/v1/namespaces/team/pods",
        ]
        await cluster.close()
