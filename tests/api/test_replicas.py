"""Two operators, as processes, on one real API server: with a Lease between them, and without."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.api.audited import made_a_pod, raised_before_deleted
from tests.api.jobs import Jobs, rank
from tests.chaos.source import blind
from tests.chart.rendering import Helm, of_kind
from tests.cluster import binaries
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.cluster.audit import Entry
from tests.cluster.gate import Gate
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End, Life
from tests.cluster.tiers import skipping_where_unavailable
from tests.waiting import wait_for

NAMESPACE, NAME = operators.ACCOUNT
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
PATIENCE = 200  # s; a hand-over takes 2 of them, or 17
LEASE_SECONDS = 15.0


@pytest.fixture(scope="module")
def installed() -> list[Body]:
    """What the chart renders for two replicas."""
    with skipping_where_unavailable():
        return Helm(binaries.helm()).objects("--set=replicas=2")


@pytest.fixture
def lease(api_server: ApiServer, crd: None, installed: list[Body]) -> str:
    """The argument with the Lease of a fresh install, which nobody has held."""
    operators.grant_rights(api_server)
    if api_server.exists(f"{LEASES}/{NAME}"):
        api_server.request("DELETE", f"{LEASES}/{NAME}")
    items = [body for kind in ("Role", "RoleBinding", "Lease") for body in of_kind(installed, kind)]
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    api_server.kubectl("apply", "-f", "-", input=json.dumps(listing))
    (argument,) = (
        argument
        for body in of_kind(installed, "Deployment")
        for argument in body["spec"]["template"]["spec"]["containers"][0]["args"]
        if argument.startswith("--lease=")
    )
    return str(argument)


@pytest.fixture
def pair(api_server: ApiServer, lease: str, tmp_path: Path) -> Iterator[list[OperatorProcess]]:
    """Two that share the Lease: the leader, and the one that stands by."""
    with ExitStack() as stack:
        found = [started(stack, api_server, tmp_path / name, lease) for name in ("a", "b")]
        leader = one_that_leads(found)
        yield sorted(found, key=lambda each: each is not leader)


def started(
    stack: ExitStack, server: ApiServer, folder: Path, *arguments: str, url: str = ""
) -> OperatorProcess:
    folder.mkdir()
    process = stack.enter_context(OperatorProcess(server, folder, *arguments, url=url))
    process.wait_until_ready()
    return process


def one_that_leads(processes: list[OperatorProcess]) -> OperatorProcess:
    """Wait for it. Raises TimeoutError."""
    (leader,) = wait_for(lambda: [process for process in processes if process.leads])
    return leader


async def takes_over(process: OperatorProcess) -> None:
    await asyncio.to_thread(one_that_leads, [process])


async def ended(process: OperatorProcess) -> int:
    """Its exit code, when it has ended by itself."""
    assert process.process is not None
    return await asyncio.to_thread(process.process.wait, PATIENCE)


def second_attempt_ends(pod: Body) -> Life:
    return Life(run_seconds=1.0) if rank(pod)[0] else Life()


def created_pods(writes: list[Entry]) -> Counter[str]:
    return Counter(entry.name for entry in writes if made_a_pod(entry))


def counts(job: Body) -> tuple[Any, ...]:
    status = job["status"]
    return status["restarts"], status["attempt"], status["budget"]["charged"]


RESTARTED_ONCE = {f"digits-{attempt}-{node_rank}": 1 for attempt in (0, 1) for node_rank in (0, 1)}
FAILURE = End(exit_code=1, message="ValueError: boom")
Restarting = Callable[[], AbstractAsyncContextManager[Callable[[], None]]]


@pytest.fixture
def restarting(api_server: ApiServer, jobs: Jobs, played: Played) -> Restarting:
    """A block in which a job runs; it yields what has it fail. In the end it restarted once."""

    @asynccontextmanager
    async def block() -> AsyncIterator[Callable[[], None]]:
        mark = api_server.audit.mark()
        async with played(second_attempt_ends) as kubelet:
            await jobs.create()
            await jobs.in_state("Running")
            yield lambda: kubelet.finish(jobs.namespace, "digits-0-1", FAILURE)
            assert counts(await jobs.in_state("Succeeded")) == (1, 1, 1)
        writes = api_server.audit.writes(mark, namespace=jobs.namespace)
        assert created_pods(writes) == RESTARTED_ONCE

    return block


async def test_one_leads_and_the_other_only_looks(
    api_server: ApiServer, mark: int, pair: list[OperatorProcess], jobs: Jobs, played: Played
) -> None:
    leader, other = pair
    both_there = api_server.audit.mark()
    async with played(lambda pod: Life(run_seconds=0.5)):
        await jobs.create()
        await jobs.in_state("Succeeded")
    entries = list(api_server.audit.entries(both_there))
    assert {e.resource for e in entries if e.writes and e.credential == other.credential} == set()
    asked = {
        (entry.resource, entry.verb)
        for entry in api_server.audit.entries(mark)
        if entry.credential == other.credential
    }
    assert ("leases", "get") in asked and ("pods", "list") in asked
    wrote = {e.resource for e in entries if e.writes and e.credential == leader.credential}
    assert {"pods", "ddpjobs/status"} <= wrote
    assert leader.get("/readyz") == "leading\n" and other.get("/readyz") == "standing by\n"
    assert "ddpjob_leader 0.0" in other.get("/metrics")


@pytest.mark.deep
async def test_the_other_takes_over_from_one_that_is_killed(
    pair: list[OperatorProcess], restarting: Restarting
) -> None:
    leader, other = pair
    async with restarting() as fail:
        leader.kill()
        killed = time.monotonic()
        fail()
        await takes_over(other)
        print(f"took over {time.monotonic() - killed:.1f} s after SIGKILL")
        leader.start()
        leader.wait_until_ready()
    assert other.leads and not leader.leads


async def test_the_other_takes_over_at_once_from_one_that_is_asked_to_end(
    pair: list[OperatorProcess], restarting: Restarting
) -> None:
    leader, other = pair
    async with restarting() as fail:
        assert leader.kill(signal.SIGTERM) == 0
        ended_at = time.monotonic()  # what it takes to end is not the other's
        assert "released lease=" in leader.log.read_text(), "the other has to wait for its end"
        fail()
        await takes_over(other)
        took = time.monotonic() - ended_at
        print(f"took over {took:.1f} s after the end of the first")
    # Without a release it is the Lease's time, less the 2 s since the last renewal.
    assert took < LEASE_SECONDS - 3, "it waited until the Lease expired"


@pytest.mark.deep
async def test_one_that_was_stopped_for_too_long_writes_nothing_more_and_ends(
    api_server: ApiServer, pair: list[OperatorProcess], jobs: Jobs, restarting: Restarting
) -> None:
    leader, other = pair
    assert leader.process is not None
    async with restarting() as fail:
        leader.process.send_signal(signal.SIGSTOP)
        fail()
        await takes_over(other)
        await jobs.until(lambda job: job["status"]["attempt"] == 1)
        woken = api_server.audit.mark()
        leader.process.send_signal(signal.SIGCONT)
        assert await ended(leader) == 1
    late = [e for e in api_server.audit.writes(woken) if e.credential == leader.credential]
    assert not late


@pytest.mark.deep
async def test_one_that_does_not_reach_the_api_server_ends_and_the_other_takes_over(
    api_server: ApiServer, lease: str, restarting: Restarting, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        async with Gate(api_server.url) as gate:
            start = (stack, api_server, tmp_path / "a", lease)
            leader = await asyncio.to_thread(started, *start, url=gate.url)
            await takes_over(leader)
            other = await asyncio.to_thread(started, stack, api_server, tmp_path / "b", lease)
            async with restarting() as fail:
                gate.shut()
                cut = time.monotonic()
                fail()
                assert await ended(leader) == 1
                others, took = other.leads, time.monotonic() - cut
                print(f"ended {took:.1f} s after the cut")
                # Later the other may lead; and this look is late where the machine is busy.
                assert not others or took > LEASE_SECONDS - 3, "it led before this one had ended"
                await takes_over(other)
                print(f"took over {time.monotonic() - cut:.1f} s after the cut")


@pytest.mark.deep
async def test_two_that_both_lead_do_nothing_twice(
    api_server: ApiServer, crd: None, jobs: Jobs, played: Played, tmp_path: Path
) -> None:
    """Without any Lease: being right must not depend on it."""

    def life(pod: Body) -> Life:
        attempt, node_rank = rank(pod)
        job = pod["metadata"]["labels"][names.JOB_LABEL]
        if job.startswith("restarting") and attempt < 3:
            failing = node_rank == attempt
            return Life(run_seconds=0.5, end=FAILURE) if failing else Life()
        return Life() if job == "suspended" and attempt == 0 else Life(run_seconds=0.5)

    known = ["plain", "suspended", *(f"restarting-{number}" for number in range(6))]
    mark = api_server.audit.mark()
    with ExitStack() as stack:
        both = [started(stack, api_server, tmp_path / name) for name in ("a", "b")]
        assert all(operator.leads for operator in both)
        async with played(life):
            for name in known:
                no_pause = {"backoffSeconds": {"first": 0}}
                await jobs.create(name, nnodes=4, failurePolicy=no_pause)
            await jobs.in_state("Running", "suspended")
            await jobs.patch("suspended", suspend=True)
            await jobs.in_state("Suspended", "suspended")
            await jobs.patch("suspended", suspend=False)
            found = {name: await jobs.in_state("Succeeded", name) for name in known}
    for name, job in found.items():
        restarts = 3 if name.startswith("restarting") else 0
        attempt = 1 if name == "suspended" else restarts
        assert counts(job) == (restarts, attempt, restarts), name
    writes = api_server.audit.writes(mark, namespace=jobs.namespace)
    created = created_pods(writes)
    expected = {
        f"{name}-{attempt}-{node_rank}"
        for name, job in found.items()
        for attempt in range(job["status"]["attempt"] + 1)
        for node_rank in range(4)
    }
    assert set(created) == expected and set(created.values()) == {1}
    assert raised_before_deleted(writes) and not blind(writes, operators.USER)
    tried = {operator.credential: 0 for operator in both}
    for entry in writes:
        if entry.credential in tried:
            tried[entry.credential] += 1
    print(f"writes of the two: {sorted(tried.values())}")
    assert all(tried.values()), "only one of them did anything, which shows nothing"
