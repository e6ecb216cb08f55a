"""One plan on a real cluster, and what was wrong with it."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff

from ddpjob import names
from ddpjob.cluster import DDPJOBS, NETWORK_POLICIES, PODS, SERVICES
from ddpjob.errors import ClusterError
from tests.chaos.auditor import FINISHED, Auditor
from tests.chaos.ends import CLOCKS, without
from tests.chaos.faults import Fault
from tests.chaos.lane import Lane
from tests.chaos.plan import Plan
from tests.chaos.proxy import Faults
from tests.chaos.source import blind, entries
from tests.chaos.workloads import NAME, WORKLOADS, in_state
from tests.cluster.operator import USER
from tests.waiting import PATIENCE

QUIET_SECONDS = 1.5  # longer than the operator's own pauses where nothing fails
REST_SECONDS = PATIENCE  # from the job's end to rest, the operator's back-off after faults included
STILL_SECONDS = 30.0  # a job that has ended, and of which nothing was heard for so long, is done
LIFE_SECONDS = 2 * PATIENCE  # on a machine that is kept busy too
# Rounds are met on the embedded cluster, and with real agents in tests/api/test_rounds.py.
BY_NAME = {workload.name: workload for workload in WORKLOADS if workload.play is None}


@dataclass(frozen=True)
class Verdict:
    """What came of one run."""

    plan: Plan
    wrong: tuple[str, ...]
    """In words that begin with the promise that was broken."""
    fired: tuple[Fault, ...]
    writes: int
    end: str

    def __str__(self) -> str:
        return "\n  ".join([str(self.plan), *self.wrong])


References = Mapping[str, str]
"""The end without faults, by workload."""


async def run(lane: Lane, plan: Plan, references: References) -> Verdict:
    """One life of the job in this lane, and what is left of it removed."""
    workload = BY_NAME[plan.workload]
    faults = Faults.of(plan)
    wanted = references.get(plan.workload)
    mark = await asyncio.to_thread(lane.site.server.audit.mark)
    lane.begin(faults, workload)
    wrong: list[str] = []
    try:
        async with asyncio.timeout(LIFE_SECONDS):
            await workload.submit(lane)
            await workload.acts(lane)
            await in_state(lane, workload.ends)
        wrong += await at_rest(lane, plan, wanted)
    except (TimeoutError, ClusterError, LookupError, AssertionError) as error:
        lane.check()
        where = end_of(lane, plan)
        wrong.append(
            f"lost: it never came to its end ({type(error).__name__} {error}), but to {where}"
        )
        wrong.append(f"the operator's log: {lane.operator.log[-4000:]}")
    end, calm = end_of(lane, plan), len(lane.source.changes)
    wrong += await clear(lane)
    writes = await asyncio.to_thread(lane.site.server.audit.writes, mark, namespace=lane.namespace)
    trail = entries(lane.source.changes, writes, USER)
    auditor = Auditor()
    auditor.replay(trail[:calm])
    # What is left of a job that is gone is being collected: a leak is what stays.
    auditor.breaches = [breach for breach in auditor.at_rest() if breach.promise != "I11"]
    auditor.replay(trail[calm:])
    wrong += map(str, auditor.at_rest())
    wrong += blind(writes, USER)
    wrong += [f"exit: the operator ended by itself, {words}" for words in lane.operator.exits]
    return Verdict(plan, tuple(wrong), tuple(faults.fired), faults.writes, end)


async def at_rest(lane: Lane, plan: Plan, wanted: str | None) -> list[str]:
    """Wait until nothing is written and all is as `wanted`; what is wrong if that fails."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REST_SECONDS
    while True:
        lane.check()
        last = max(lane.faults.last_write, lane.source.last_change)
        quiet = loop.time() - last > QUIET_SECONDS
        going = any("deletionTimestamp" in pod["metadata"] for pod in lane.source.of(PODS))
        busy = going or being_collected(lane) or strays(lane)
        as_wanted = has_ended(lane, plan) if wanted is None else wanted == end_of(lane, plan)
        if quiet and as_wanted and not busy:
            return []
        over = is_over(lane) and loop.time() - last > STILL_SECONDS and not being_collected(lane)
        if over or loop.time() > deadline:
            break
        await asyncio.sleep(0.05)
    found = end_of(lane, plan)
    if left := strays(lane):
        return [f"I6: {left} run though their job has ended"]
    if wanted in (None, found):
        return ["I14: it never comes to rest"]
    diff = unified_diff((wanted or "").splitlines(), found.splitlines(), n=0, lineterm="")
    return ["end: not as without faults:\n    " + "\n    ".join(diff)]


def has_ended(lane: Lane, plan: Plan) -> bool:
    """Whether the job is in the state in which its life ends, or gone if it has none."""
    job = lane.source.objects.get((DDPJOBS.plural, NAME)) or {}
    return bool((job.get("status") or {}).get("state", "") == BY_NAME[plan.workload].ends)


def is_over(lane: Lane) -> bool:
    """Whether all jobs have ended, or are gone."""
    states = [(job.get("status") or {}).get("state") for job in lane.source.of(DDPJOBS)]
    return all(state in FINISHED for state in states)


def strays(lane: Lane) -> list[str]:
    """Pods that go on though all jobs have ended."""
    return [
        pod["metadata"]["name"]
        for pod in lane.source.of(PODS)
        if is_over(lane)
        and pod["metadata"].get("ownerReferences")
        and (pod.get("status") or {}).get("phase") not in FINISHED
    ]


def being_collected(lane: Lane) -> bool:
    """Whether something is left of a job that is gone; a leak, if it stays."""
    jobs = {job["metadata"]["uid"] for job in lane.source.of(DDPJOBS)}
    owners = (
        body["metadata"].get("ownerReferences") or [] for body in lane.source.objects.values()
    )
    return any(owner["uid"] not in jobs for found in owners for owner in found)


def end_of(lane: Lane, plan: Plan) -> str:
    """The job's status without times, its children, and how often each name was created."""
    job = lane.source.objects.get((DDPJOBS.plural, NAME)) or {}
    left = {
        resource.kind: sorted(found["metadata"]["name"] for found in lane.source.of(resource))
        # A finished job's ConfigMap is dropped on the way, or else goes with the job.
        for resource in (PODS, SERVICES, NETWORK_POLICIES)
    }
    created = Counter(
        f"{change.body['kind']} {change.body['metadata']['name']}"
        for change in lane.source.changes
        if change.type == "ADDED" and change.body["kind"] != names.KIND
    )
    status = without(job.get("status"), {*CLOCKS, *BY_NAME[plan.workload].loose})
    return json.dumps([status, left, created], indent=1, sort_keys=True)


async def clear(lane: Lane) -> list[str]:
    """Delete the job, and what is nobody's; what then stays is a leak."""
    for resource in (DDPJOBS, PODS, SERVICES, NETWORK_POLICIES):
        for body in lane.source.of(resource):
            meta = body["metadata"]
            if resource == DDPJOBS or not meta.get("ownerReferences"):
                with suppress(ClusterError):
                    await lane.delete(resource, "", meta["name"], uid=meta["uid"])
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REST_SECONDS
    while lane.source.objects:
        lane.check()
        if loop.time() > deadline:
            return [f"I11: left behind: {sorted(map('/'.join, lane.source.objects))}"]
        await asyncio.sleep(0.05)
    return []
