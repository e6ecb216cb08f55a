"""What a job goes through: specs, pods that end by a script, people who change their minds."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, Protocol

from ddpjob import names
from ddpjob.cluster import DDPJOBS, PODS, SERVICES, Listing, Resource
from ddpjob.controller.workloads import WORKLOADS as WORKLOADS_OF_KUEUE
from ddpjob.errors import Conflict, NotFound
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Gang, Policy
from ddpjob.settings import Settings
from tests.builders import job_object
from tests.chaos.agents import SECONDARY, Play
from tests.chaos.network import CALM_SECONDS, Trouble
from tests.localplay import FAST, NAMESPACE, NO_NODE_FOR, NO_ROOM, Script, end_pod, until

NAME = "digits"
_SERVICE = {"metadata": {"name": NAME}, "spec": {"clusterIP": "None"}}
MIDST_SECONDS = 0.1  # from a new round to its midst: the nodes have their order
NO_PAUSE = {"first": 0, "cap": 360}


class Cluster(Protocol):
    """A cluster to act on, embedded or real."""

    patience: tuple[float, float]
    """How many seconds to wait for a state, and how often to look."""

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body: ...
    async def get(self, resource: Resource, namespace: str, name: str) -> Body: ...
    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str
    ) -> Body | None: ...
    async def update(self, resource: Resource, namespace: str, body: Any) -> Body: ...
    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body: ...
    async def list(self, resource: Resource, *, namespace: str | None) -> Listing: ...


Acts = Callable[[Cluster], Awaitable[None]]
Forward = Callable[[float], None]
"""Let so many seconds pass at once."""


async def nothing(cluster: Cluster) -> None:
    """Nobody does anything."""


@dataclass(frozen=True)
class Workload:
    """One job's life."""

    name: str
    script: Script
    ends: str  # the state to wait for; "" for a job that goes
    spec: dict[str, Any] = field(default_factory=dict)
    acts: Acts = nothing
    taken: bool = False  # its name is somebody else's Service's at first
    # Its limit ends something. Where the operator's clock can be held, time passes only here.
    # Elsewhere it passes by itself, and the end depends on how fast the machine is.
    timed: Callable[[Cluster, Forward], Awaitable[None]] | None = None
    anew: bool = False  # a fault may have all pods made anew, where otherwise some stay
    loose: tuple[str, ...] = ()  # fields of status that may differ from run to run
    first: int = 1  # the write from which on faults befall it; those before are as in other lives
    play: Play | None = None  # how its agents fare, where they wait to be asked on after a failure
    settings: Settings = FAST  # the operator's
    labels: dict[str, str] = field(default_factory=dict)

    async def submit(self, cluster: Cluster) -> None:
        """Create the job, with three nodes unless its spec has another number."""
        if self.taken:
            await cluster.create(SERVICES, NAMESPACE, _SERVICE)
        body = job_object(NAME, **{"nnodes": 3, **self.spec})
        body["metadata"]["labels"] = self.labels
        await cluster.create(DDPJOBS, NAMESPACE, body)


async def read(cluster: Cluster) -> Body | None:
    """The job as it is now."""
    try:
        return await cluster.get(DDPJOBS, NAMESPACE, NAME)
    except NotFound:
        return None


async def in_state(cluster: Cluster, state: str) -> Body | None:
    """The job once it is in this state; None once it is gone, if `state` is empty."""

    async def look() -> Body | bool | None:
        job = await read(cluster)
        if not state:
            return job is None
        return job if job and (job.get("status") or {}).get("state") == state else None

    found = await until(look, *cluster.patience)
    return found if isinstance(found, dict) else None


async def delete(cluster: Cluster) -> None:
    """`kubectl delete ddpjob`, once it runs."""
    job = await in_state(cluster, "Running")
    assert job is not None
    await cluster.delete(DDPJOBS, NAMESPACE, NAME, uid=job["metadata"]["uid"])


async def replace(cluster: Cluster) -> None:
    """Delete, and create another one of that name at once."""
    await delete(cluster)
    await cluster.create(DDPJOBS, NAMESPACE, job_object(NAME, nnodes=2, image="trainer:2"))


async def edit(cluster: Cluster, **changes: Any) -> None:
    """Change the spec, as often as it takes."""
    while True:
        job = await read(cluster)
        assert job is not None
        try:
            body = {**job, "spec": {**job["spec"], **changes}}
            await cluster.update(DDPJOBS, NAMESPACE, body)
            return
        except Conflict:
            await asyncio.sleep(0)


async def suspend_edit_resume(cluster: Cluster) -> None:
    """Suspend the running job, change its size, and let it go on."""
    await in_state(cluster, "Running")
    await edit(cluster, suspend=True)
    await in_state(cluster, "Suspended")
    await edit(cluster, suspend=False, nnodes=2)


async def lose_a_finished_pod(cluster: Cluster) -> None:
    """`kubectl delete pod` of rank 0 when it is known to have ended well; then the others end."""

    async def known() -> bool:
        job = await read(cluster)
        return bool(job and (job.get("status") or {}).get("succeededRanks") == "0")

    await until(known, *cluster.patience)
    done = await cluster.get(PODS, NAMESPACE, f"{NAME}-0-0")
    await cluster.delete(PODS, NAMESPACE, f"{NAME}-0-0", uid=done["metadata"]["uid"])
    for rank in (1, 2):
        await finish(cluster, f"{NAME}-0-{rank}")


async def finish(cluster: Cluster, name: str) -> None:
    """The pod's trainer ends with 0."""
    while True:
        pod = await cluster.get(PODS, NAMESPACE, name)
        try:
            await end_pod(cluster, pod, 0)
            return
        except Conflict:
            await asyncio.sleep(0)


def finds_a_name_taken(job: Body) -> bool:
    """Whether the job's status says so."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(condition["reason"] == "NameTaken" for condition in conditions)


async def take_the_name(cluster: Cluster) -> None:
    """Somebody else's Service has the job's name, until it is seen that this is so."""

    async def told() -> bool:
        return finds_a_name_taken(await read(cluster) or {})

    await until(told, *cluster.patience)
    found = (await cluster.list(PODS, namespace=NAMESPACE)).items
    assert not found, "pods for a job whose Service is somebody else's"
    theirs = await cluster.get(SERVICES, NAMESPACE, NAME)
    assert "ownerReferences" not in theirs["metadata"]
    await cluster.delete(SERVICES, NAMESPACE, NAME, uid=theirs["metadata"]["uid"])


async def lose_a_pod(cluster: Cluster, rank: int = 1, spares: int = 0) -> None:
    """`kubectl delete pod`, once the job runs, with so many spares."""
    await in_state(cluster, "Running")

    async def has_spares() -> bool:
        status = (await read(cluster) or {}).get("status") or {}
        return bool(status["nodes"].get("spares", 0) >= spares)

    await until(has_spares, *cluster.patience)
    name = f"{NAME}-0-{rank}"
    pod = await cluster.get(PODS, NAMESPACE, name)
    await cluster.delete(PODS, NAMESPACE, name, uid=pod["metadata"]["uid"])


async def lose_a_pod_between_rounds(cluster: Cluster) -> None:
    """`kubectl delete pod` of rank 1, once the next round is wanted."""

    async def between() -> bool:
        return ((await read(cluster) or {}).get("status") or {}).get("round") == 1

    await until(between, *cluster.patience)
    await asyncio.sleep(MIDST_SECONDS)
    pod = await cluster.get(PODS, NAMESPACE, f"{NAME}-0-1")
    await cluster.delete(PODS, NAMESPACE, f"{NAME}-0-1", uid=pod["metadata"]["uid"])


async def update(cluster: Cluster, lost: str = "", times: int = 1) -> None:
    """Other arguments, once the job runs, and as often again as a round is seen.

    The pod with the name `lost` is deleted in the same moment.
    """
    await in_state(cluster, "Running")
    if lost:
        pod = await cluster.get(PODS, NAMESPACE, lost)
        await cluster.delete(PODS, NAMESPACE, lost, uid=pod["metadata"]["uid"])
    for number in range(1, times + 1):
        await edit(cluster, args=[f"edit-{number}.py"])

        async def has_come(number: int = number) -> bool:
            status = (await read(cluster) or {}).get("status") or {}
            return bool(status["attempt"] or status["round"] >= number)

        await until(has_come, *cluster.patience)


async def update_when_idle(cluster: Cluster) -> None:
    """Other arguments, once the ranks have ended; and until they have ended again."""
    await in_state(cluster, "Idle")
    await edit(cluster, args=["edit.py"])

    async def has_run() -> bool:
        status = (await read(cluster) or {}).get("status") or {}
        return status["state"] == "Idle" and bool(status["attempt"] or status["round"] > 1)

    await until(has_run, *cluster.patience)


async def late_when_idle(cluster: Cluster, forward: Forward) -> None:
    """The pods have been kept for their time."""
    await in_state(cluster, "Idle")
    forward(2)


async def late_when_running(cluster: Cluster, forward: Forward) -> None:
    """All ranks run for a second."""
    await in_state(cluster, "Running")
    forward(1)


async def late_without_a_node(cluster: Cluster, forward: Forward) -> None:
    """Two ranks run for a second while no node has room for the third; then the pause is over."""

    async def stuck() -> bool:
        pods = (await cluster.list(PODS, namespace=NAMESPACE)).items
        there = [pod["status"] for pod in pods]
        return sorted(_is_stuck(status) for status in there) == [False, False, True] and all(
            _is_stuck(status) or status["phase"] == "Running" for status in there
        )

    await until(stuck, *cluster.patience)
    forward(1)
    await in_state(cluster, "Restarting")
    forward(2)


def _is_stuck(status: Body) -> bool:
    return NO_ROOM in (status.get("conditions") or [])


def runs(attempt: int, rank: int) -> int | None:
    """Every pod runs on."""
    return None


def succeeds(attempt: int, rank: int) -> int | None:
    """Every pod ends well."""
    return 0


def runs_then_succeeds(attempt: int, rank: int) -> int | None:
    """Pods of the first attempt run on, later ones end well."""
    return 0 if attempt else None


def fails_once(attempt: int, rank: int) -> int | None:
    """Rank 1 of the first attempt fails, the others of it run on."""
    return 0 if attempt else 1 if rank == 1 else None


def always_fails(attempt: int, rank: int) -> int | None:
    """Rank 2 of every attempt fails."""
    return 1 if rank == 2 else None


def by_the_rules(attempt: int, rank: int) -> int | None:
    """Rank 2 ends with a code that is ignored; rank 1 with one that does not count, once."""
    if rank == 2:
        return 3
    return 0 if attempt else 42 if rank == 1 else None


def fails_in_round_0(attempt: int, number: int, rank: int) -> int | None:
    """Rank 1 fails, and rank 0 because of it; later rounds and attempts end well."""
    return 0 if attempt or number else (SECONDARY, 1)[rank]


def fails_twice(attempt: int, number: int, rank: int) -> int | None:
    """Rank 1 fails in the first two rounds; the next attempt ends well."""
    return 0 if attempt else 1 if rank == 1 else None


def fails_alone(attempt: int, number: int, rank: int) -> int | None:
    """Rank 1 fails in round 0; later rounds and attempts end well."""
    return 0 if attempt or number else 1 if rank == 1 else None


# A group goes on without those that are lost, and takes none in.
AT_ONCE = {"minNodes": 2, "replaceSeconds": 0}


def _in_place(**policy: Any) -> dict[str, Any]:
    """A spec with two nodes that start again in their pods."""
    return {"nnodes": 2, "failurePolicy": {"restartStrategy": "InPlace", **policy}}


RULES = [
    {"onExitCodes": [3], "action": "Ignore"},
    {"onExitCodes": [42], "action": "Restart", "countsTowardsMax": False, "avoidNode": True},
]
WORKLOADS = (
    Workload("succeeds", succeeds, "Succeeded"),
    Workload("fails-once", fails_once, "Succeeded"),
    Workload(
        "uses-up-its-budget",
        always_fails,
        "Failed",
        {"failurePolicy": {"maxRestarts": 1, "backoffSeconds": NO_PAUSE}},
    ),
    Workload("is-deleted", runs, "", acts=delete),
    Workload("is-replaced", runs, "Running", acts=replace),
    Workload("is-suspended", runs_then_succeeds, "Succeeded", acts=suspend_edit_resume),
    Workload(
        "loses-a-pod",
        runs_then_succeeds,
        "Succeeded",
        {"failurePolicy": {"restartStrategy": "Recreate"}},
        acts=lose_a_pod,
        # PodDeleted, or ResultUnknown if the operator was away while it was being deleted.
        loose=("reason", "message", "node"),
    ),
    Workload(
        "loses-a-finished-pod",
        lambda attempt, rank: None if rank else 0,
        "Succeeded",
        acts=lose_a_finished_pod,
    ),
    Workload("finds-its-name-taken", succeeds, "Succeeded", acts=take_the_name, taken=True),
    Workload(
        "has-rules",
        by_the_rules,
        "Succeeded",
        {"failurePolicy": {"maxRestarts": 0, "rules": RULES}},
    ),
    Workload(
        "ends-with-rank-0",
        lambda _, rank: None if rank else 0,
        "Succeeded",
        {"successPolicy": "Rank0"},
    ),
    Workload("goes-after-its-time", succeeds, "", {"ttlSecondsAfterFinished": 0}),
    Workload(
        "starts-in-part",
        succeeds,
        "Succeeded",
        {
            "startupDeadlineSeconds": 1,
            "failurePolicy": {"backoffSeconds": NO_PAUSE},
            "template": {"metadata": {"annotations": {NO_NODE_FOR: "0-2"}}},
        },
        timed=late_without_a_node,
    ),
    Workload(
        "misses-its-deadline",
        runs,
        "Failed",
        {"activeDeadlineSeconds": 1},
        timed=late_when_running,
    ),
    Workload(
        "fails-in-place",
        runs,
        "Succeeded",
        _in_place(),
        play=Play(fails_in_round_0),
    ),
    Workload(
        "fails-in-place-twice",
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE),
        play=Play(fails_twice),
    ),
    Workload(
        "fails-for-good",
        runs,
        "Failed",
        _in_place(rules=[{"onExitCodes": [1], "action": "FailJob"}]),
        play=Play(fails_alone),
    ),
    Workload(
        "loses-a-pod-between-rounds",
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE),
        acts=lose_a_pod_between_rounds,
        anew=True,  # as below
        loose=("reason", "message", "node"),  # as above
        play=Play(fails_alone, stuck=(0,)),
    ),
    *(
        Workload(
            f"replaces-rank-{rank}",
            runs,
            "Succeeded",
            _in_place(backoffSeconds=NO_PAUSE) | {"nnodes": 3},
            acts=partial(lose_a_pod, rank=rank),
            anew=True,  # if the operator was away while the pod ended
            play=Play(lambda attempt, number, _: 0 if attempt or number else None),
        )
        for rank in (0, 1)
    ),
    *(
        Workload(
            f"swaps-rank-{rank}",
            runs,
            "Succeeded",
            _in_place(backoffSeconds=NO_PAUSE) | {"nnodes": 3, "spares": 1},
            acts=partial(lose_a_pod, rank=rank, spares=1),
            anew=True,  # as above
            loose=("reason", "message", "node", "pod", "spares"),
            play=Play(lambda attempt, number, _: 0 if attempt or number else None),
        )
        for rank in (0, 1)
    ),
    *(
        Workload(
            f"shrinks-by-rank-{rank}",
            runs,
            "Succeeded",
            _in_place(backoffSeconds=NO_PAUSE) | {"nnodes": 4, "elastic": AT_ONCE},
            acts=partial(lose_a_pod, rank=rank),
            anew=True,  # as above
            play=Play(lambda attempt, number, _: 0 if attempt or number else None),
        )
        for rank in (0, 1, 3)
    ),
    Workload(
        "grows-again",
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE)
        | {"nnodes": 3, "elastic": {"minNodes": 2, "replaceSeconds": 0, "growSeconds": 1}},
        acts=lose_a_pod,
        anew=True,  # as above
        loose=("pod", "spares"),
        play=Play(lambda attempt, number, _: 0 if attempt or number > 1 else None),
    ),
    Workload(
        "is-updated",
        runs,
        "Succeeded",
        _in_place(),
        acts=update,
        play=Play(lambda attempt, number, _: 0 if attempt or number else None),
    ),
    Workload(
        "is-updated-twice",
        runs,
        "Succeeded",
        _in_place(),
        acts=partial(update, times=2),
        play=Play(lambda attempt, number, _: 0 if attempt or number > 1 else None),
    ),
    Workload(
        "is-updated-as-a-pod-goes",
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE) | {"nnodes": 3},
        acts=partial(update, lost=f"{NAME}-0-1"),
        anew=True,  # as above
        loose=(
            *("reason", "message", "node", "round", "history", "program", "restarts"),
            "observedGeneration",  # it may have ended before the edit
        ),
        play=Play(lambda attempt, number, _: 0 if attempt or number else None),
    ),
    Workload(
        "is-kept-and-updated",
        runs,
        "Idle",
        _in_place() | {"keepSeconds": 3600},
        acts=update_when_idle,
        play=Play(lambda attempt, number, rank: 0),
    ),
    Workload(
        "is-kept-and-fails",
        runs,
        "Idle",
        _in_place(maxRestarts=0) | {"keepSeconds": 3600},
        acts=update_when_idle,
        play=Play(fails_alone),
    ),
    Workload(
        "is-kept-for-its-time",
        runs,
        "Succeeded",
        _in_place() | {"keepSeconds": 1},
        timed=late_when_idle,
        play=Play(lambda attempt, number, rank: 0),
    ),
    Workload(
        "is-not-asked-on",
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE),
        play=Play(fails_alone, unheard=True),
    ),
)


def _silence(
    name: str, *troubles: Trouble, nnodes: int = 2, spares: int = 0, **more: Any
) -> Workload:
    """A job whose nodes have these troubles in its first attempt; the next one ends well."""
    spec = _in_place(backoffSeconds=NO_PAUSE) | {"nnodes": nnodes, "spares": spares, **more}
    play = Play(lambda attempt, number, _: 0 if attempt or number else None, troubles=troubles)
    first = nnodes + 7  # Running
    if not spares:
        return Workload(name, runs, "Succeeded", spec, first=first, play=play)
    first += 4  # and the spare is there
    return Workload(name, runs, "Succeeded", spec, loose=("pod", "spares"), first=first, play=play)


async def evict(cluster: Cluster) -> None:
    """Kueue takes the quota of the running job back."""
    await in_state(cluster, "Running")
    while True:
        (found,) = (await cluster.list(WORKLOADS_OF_KUEUE, namespace=NAMESPACE)).items
        evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "by x"}
        conditions = [*found["status"]["conditions"], evicted]
        try:
            body = {**found, "status": {**found["status"], "conditions": conditions}}
            await cluster.update_status(WORKLOADS_OF_KUEUE, NAMESPACE, body)
            return
        except Conflict:
            await asyncio.sleep(0)


async def play_kueue(cluster: Cluster) -> None:
    """Admit every Workload that has no quota, until cancelled."""
    granted = {"clusterQueue": "all", "podSetAssignments": [{"name": "main", "count": 3}]}
    done = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
    while True:
        for found in (await cluster.list(WORKLOADS_OF_KUEUE, namespace=NAMESPACE)).items:
            if "admission" not in found.get("status", {}):
                body = {**found, "status": {"admission": granted, "conditions": done}}
                with suppress(Conflict, NotFound):
                    await cluster.update_status(WORKLOADS_OF_KUEUE, NAMESPACE, body)
        await asyncio.sleep(0.005)


QUEUES = (
    Workload(
        "waits-for-kueue",
        runs_then_succeeds,
        "Succeeded",
        acts=evict,
        loose=("admission",),  # it names the Workload, whose name has a part of the job's uid
        settings=replace_fields(FAST, kueue=True),
        labels={names.QUEUE_LABEL: "team-a"},
    ),
    Workload(
        "is-a-gang",  # which fails in place, and then not
        runs,
        "Succeeded",
        _in_place(backoffSeconds=NO_PAUSE),
        play=Play(fails_twice),
        settings=replace_fields(FAST, policy=Policy(gang=Gang(scheduler="kubernetes"))),
    ),
)
"""What waits for others before it has pods."""

FOR_LONG = 25.0  # seconds: somewhat more than `nodeTimeoutSeconds` and a third of it
SILENCES = (
    _silence("loses-a-node", Trouble((1,), dies=True)),
    _silence("loses-rank-0s-node", Trouble((0,), dies=True)),
    _silence(
        "loses-two-nodes",
        Trouble((1,), dies=True),
        Trouble((2,), dies=True, after=CALM_SECONDS + 1.5),
        nnodes=3,
    ),
    # The operator is lost too, so that rank 0 hears nobody; and then there is another one.
    _silence(
        "loses-a-node-and-the-operator",
        Trouble((1,), dies=True),
        Trouble((0,), frozenset(("operator",)), lasts=FOR_LONG),
    ),
    _silence("has-a-spare", Trouble((1,), dies=True), spares=1),
    _silence("has-a-spare-for-rank-0", Trouble((0,), dies=True), spares=1),
    _silence("goes-on-without-a-node", Trouble((1,), dies=True), nnodes=3, elastic=AT_ONCE),
    _silence("goes-on-without-rank-0", Trouble((0,), dies=True), nnodes=3, elastic=AT_ONCE),
    _silence("goes-on-without-rank-2", Trouble((2,), dies=True), nnodes=3, elastic=AT_ONCE),
    _silence("has-a-node-cut-off", Trouble((1,))),
    _silence("has-rank-0s-node-cut-off", Trouble((0,))),
    _silence("has-a-node-stopped", Trouble((1,), stops=True)),
    # The operator does not hear one node, and then none of them: the training goes on.
    _silence(
        "is-out-of-sight",
        Trouble((1,), frozenset(("operator",)), lasts=FOR_LONG),
        Trouble(
            (0, 1), frozenset(("operator",)), after=CALM_SECONDS + FOR_LONG + 5, lasts=FOR_LONG
        ),
    ),
    # Rank 0 does not hear it: it ends its ranks, and its kubelet says so.
    _silence("is-not-heard-by-rank-0", Trouble((1,), frozenset(("rank 0",)))),
    # The same, and its kubelet is not heard either.
    _silence("is-heard-by-the-operator-alone", Trouble((1,), frozenset(("rank 0", "api")))),
)
"""What may become of nodes that not all hear; for an operator whose clock is played."""
