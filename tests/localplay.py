"""A controller on an embedded cluster, with pods played by a script: the whole loop, quickly."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import orjson

from ddpjob import api, names
from ddpjob.cluster import DDPJOBS, PODS, Resource
from ddpjob.controller.controller import Controller
from ddpjob.errors import cluster_error
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from ddpjob.local.store import Stored
from ddpjob.settings import Settings
from tests.builders import job_object

FAST = Settings(
    minor_status=0.0, progress_poll=0.05, progress_write=0.0, backoff_first=0.01, workers=2
)
NAMESPACE = "team"
NO_NODE_FOR = "example.com/no-node-for"
"""Annotation of a job's pods: the one, ATTEMPT-RANK, for which no node has room."""

NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available",
}

Script = Callable[[int, int], int | None]
"""(attempt, rank) → exit code, or None to run on."""


Decoded = dict[str, tuple[Stored, Body]]
"""By uid, a pod at one revision and its body, not to be changed."""


class Crash(BaseException):
    """The operator dies here: nothing after this line runs."""


class Watched(LocalCluster):
    """Counts writes, and kills whoever makes the one that it is told to kill at."""

    def __init__(self, **options: Any) -> None:
        super().__init__(admit=admit, **options)
        self.writes: Counter[tuple[str, str, str]] = Counter()
        """(verb, kind, name) of every write of the operator's."""
        self.kill_at: tuple[int, str] | None = None
        """(number of the write, from 1; `kill-before` or `kill-after`)."""
        self.crashed: asyncio.Event = asyncio.Event()

    @contextlib.asynccontextmanager
    async def write(
        self, verb: str, resource: Resource, name: str, sent: Body
    ) -> AsyncIterator[None]:
        """A write of the operator's; `sent` is a body, or the options of a deletion."""
        if self.crashed.is_set():
            raise Crash
        self.writes[verb, resource.kind, name] += 1
        number = sum(self.writes.values())
        self._die(number, "kill-before")
        yield
        self._die(number, "kill-after")

    @property
    def revision(self) -> int:
        """Of the newest change."""
        return self._store.revision

    def pods(self, known: Decoded) -> Decoded:
        """The pods as they are, in the order of their names; `known` is what this said before."""
        found = self._store.select(PODS, NAMESPACE, lambda labels: True)
        return {
            pod.uid: was if (was := known.get(pod.uid)) and was[0] is pod else (pod, pod.body)
            for pod in found
        }

    def _die(self, number: int, when: str) -> None:
        if self.kill_at == (number, when):
            self.crashed.set()
            raise Crash

    def operator(self) -> "OperatorView":
        """The cluster as the operator under test has it."""
        return OperatorView(self)


class OperatorView:
    """The operator's connection: reads pass, writes are counted and can be fatal."""

    def __init__(self, cluster: Watched) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource.kind == "Event":
            return await self._cluster.create(resource, namespace, body)
        sent = _read(body)
        async with self._cluster.write("create", resource, sent["metadata"]["name"], sent):
            return await self._cluster.create(resource, namespace, body)

    async def delete(self, resource: Resource, namespace: str, name: str, **options: Any) -> Any:
        grace = options.get("grace_seconds")
        sent = {"preconditions": {"uid": options.get("uid")}}
        sent |= {} if grace is None else {"gracePeriodSeconds": grace}
        async with self._cluster.write("delete", resource, name, sent):
            return await self._cluster.delete(resource, namespace, name, **options)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Any) -> Body:
        async with self._cluster.write("patch", resource, name, _read(body)):
            return await self._cluster.patch(resource, namespace, name, body)

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource == DDPJOBS:
            api.Status.model_validate(body["status"])  # or the API server would refuse it
        async with self._cluster.write("status", resource, body["metadata"]["name"], body):
            return await self._cluster.update_status(resource, namespace, body)


def _read(body: bytes | Mapping[str, Any]) -> Body:
    found: Body = orjson.loads(body) if isinstance(body, bytes) else dict(body)
    return found


def admit(resource: Resource, body: Body) -> Body:
    """The schema's defaults and rules, for DDPJobs."""
    return api.with_defaults(body) if resource == DDPJOBS else body


def nowhere(pod: Body) -> str:
    """No pod has an address."""
    return ""


async def play_pods(
    cluster: Watched,
    script: Script,
    address: Callable[[Body], str] = nowhere,
    without_kubelet: Callable[[], frozenset[str]] = frozenset,
) -> None:
    """Start every pod, end it as the script says, obey deletions; until cancelled.

    No pod ends by itself before all of its group have been there, as in a real rendezvous. Nothing
    becomes of pods on nodes `without_kubelet`.
    """
    seen: defaultdict[str, set[str]] = defaultdict(set)  # names by rendezvous id
    played: tuple[int, frozenset[str]] | None = None
    known: Decoded = {}
    while True:
        while (here := (cluster.revision, without_kubelet())) == played:
            await asyncio.sleep(0.002)
        played = here
        await asyncio.sleep(0)  # as a request does
        known = cluster.pods(known)
        for _, pod in known.values():
            if pod["spec"].get("nodeName") in without_kubelet():
                continue
            env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
            group = seen[env["PET_RDZV_ID"]]
            if not is_unschedulable(pod):
                group.add(pod["metadata"]["name"])
            whole = len(group) == int(env["DDPJOB_NNODES"] or 0)
            if pod["status"]["phase"] == "Pending" and "podIP" not in pod["status"]:
                pod = {**pod, "status": {**pod["status"], "podIP": address(pod)}}
            await _play(cluster, pod, script if whole else lambda attempt, rank: None)


async def _play(cluster: LocalCluster, pod: Body, script: Script) -> None:
    meta, phase = pod["metadata"], pod["status"]["phase"]
    owners = meta.get("ownerReferences") or [{"name": ""}]
    place = names.parse_pod_name(owners[0]["name"], meta["name"])
    code = script(*place[:2]) if place else None
    with contextlib.suppress(Exception):  # a conflict: next round
        if "deletionTimestamp" in meta and phase == "Running":
            await end_pod(cluster, pod, 143)
        elif "deletionTimestamp" in meta:
            await cluster.delete(PODS, NAMESPACE, meta["name"], uid=meta["uid"], grace_seconds=0)
        elif phase == "Pending" and is_unschedulable(pod):
            if NO_ROOM not in pod["status"].get("conditions", []):
                status = {**pod["status"], "conditions": [NO_ROOM]}
                await cluster.update_status(PODS, NAMESPACE, {**pod, "status": status})
        elif phase == "Pending":
            await _set(cluster, pod, "Running", {"running": {"startedAt": "2027-01-15T08:00:00Z"}})
        elif phase == "Running" and "activeDeadlineSeconds" in pod["spec"]:
            ended = {"exitCode": 143, "finishedAt": "2027-01-15T08:00:01Z"}
            await _set(cluster, pod, "Failed", {"terminated": ended}, reason="DeadlineExceeded")
        elif phase == "Running" and code is not None:
            await end_pod(cluster, pod, code)


def is_unschedulable(pod: Body) -> bool:
    """Whether its job says that no node has room for it."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    place = f"{labels.get('ddpjob.dev/attempt')}-{labels.get('ddpjob.dev/rank')}"
    return bool((meta.get("annotations") or {}).get(NO_NODE_FOR) == place)


async def end_pod(cluster: Any, pod: Body, code: int, message: str = "") -> None:
    """Its trainer has ended. Raises Conflict where the pod has changed meanwhile."""
    ended = {"exitCode": code, "finishedAt": "2027-01-15T08:00:01Z", "message": message}
    await _set(cluster, pod, "Failed" if code else "Succeeded", {"terminated": ended})


async def _set(cluster: Any, pod: Body, phase: str, state: Body, **fields: str) -> None:
    container = {"name": "trainer", "state": state}
    fields |= {"phase": phase, "startTime": "2027-01-15T08:00:00Z"}
    status = {**pod["status"], **fields, "containerStatuses": [container]}
    await cluster.update_status(PODS, NAMESPACE, {**pod, "status": status})


@contextlib.asynccontextmanager
async def operating(
    cluster: Watched, script: Script, settings: Settings = FAST
) -> AsyncIterator[None]:
    """A controller that is started again whenever it dies, and pods that are played."""
    async with side_by_side(keep_running(cluster, settings), play_pods(cluster, script)):
        yield


@contextlib.asynccontextmanager
async def side_by_side(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A block during which all of this runs; raises what one of them has raised."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def keep_running(cluster: Watched, settings: Settings = FAST) -> None:
    """A controller that is started again whenever it dies, until cancelled."""
    while True:
        controller = Controller(cluster.operator(), settings=settings)
        run = asyncio.create_task(controller.run())
        crashed = asyncio.create_task(cluster.crashed.wait())
        try:
            await asyncio.wait({run, crashed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            crashed.cancel()
            run.cancel()
            await asyncio.wait({run})
        died = None if run.cancelled() else run.exception()
        if died is not None and not cluster.crashed.is_set():
            raise died
        cluster.crashed.clear()


async def until(condition: Callable[[], Any], seconds: float = 200.0, every: float = 0.002) -> Any:
    """The condition's first true value. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            value = await value if asyncio.iscoroutine(value) else value
            if value:
                return value
            await asyncio.sleep(every)


async def submit(
    cluster: Watched, name: str = "digits", *, namespace: str = NAMESPACE, **spec: Any
) -> Body:
    """Create a job, with three nodes unless its spec has another number."""
    return await cluster.create(DDPJOBS, namespace, job_object(name, **{"nnodes": 3, **spec}))


async def stored(cluster: Watched, name: str = "digits", *, namespace: str = NAMESPACE) -> Body:
    """The job as it is now."""
    return await cluster.get(DDPJOBS, namespace, name)


async def in_state(
    cluster: Watched, state: str, name: str = "digits", *, namespace: str = NAMESPACE
) -> Body:
    """The job once it is in this state."""

    async def look() -> Body | None:
        job = await stored(cluster, name, namespace=namespace)
        return job if job.get("status", {}).get("state") == state else None

    job: Body = await until(look)
    return job


def with_spec(body: Body, **changes: Any) -> Body:
    """The job with these fields of its spec changed."""
    return {**body, "spec": {**body["spec"], **changes}}


def accepted(job: Body) -> Body:
    """The condition of that name."""
    found: Body = next(c for c in job["status"]["conditions"] if c["type"] == "Accepted")
    return found


async def has_restarted(cluster: Watched) -> bool:
    """Whether the job has restarted once."""
    status = (await stored(cluster)).get("status") or {}
    return bool(status.get("restarts") == 1)


async def pod_names(cluster: Watched) -> list[str]:
    """All pods there are."""
    return [p["metadata"]["name"] for p in (await cluster.list(PODS, namespace=NAMESPACE)).items]


async def quiet(cluster: Watched) -> None:
    """Until the operator has made no write for a while."""
    while True:
        before = sum(cluster.writes.values())
        for _ in range(10):  # so that a pause of this whole process does not pass for quiet
            await asyncio.sleep(0.01)
        if sum(cluster.writes.values()) == before:
            return


class Refusing(Watched):
    """Answers every creation of a pod with `code`; the message differs each time."""

    code, reason, text = 403, "Forbidden", "denied (request {n})"
    refused = 0

    def operator(self) -> OperatorView:
        outer = self

        class View(OperatorView):
            async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
                if resource == PODS:
                    outer.refused += 1
                    text = outer.text.format(n=outer.refused)
                    raise cluster_error(outer.code, outer.reason, text)
                return await super().create(resource, namespace, body)

        return View(self)


@contextlib.asynccontextmanager
async def watching(cluster: Watched, *namespaces: str) -> AsyncIterator[Controller]:
    """One controller for these namespaces, and pods that all end well."""
    controller = Controller(cluster.operator(), namespaces=namespaces, settings=FAST)
    async with side_by_side(controller.run(), play_pods(cluster, lambda attempt, rank: 0)):
        yield controller
