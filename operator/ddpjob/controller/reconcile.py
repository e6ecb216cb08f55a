"""The story of one job: observe, plan, act, and again until there is nothing to do."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from secrets import token_bytes
from typing import Any

from ddpjob import names
from ddpjob.api import DDPJob, Status, broken_expressions, read_status
from ddpjob.cluster import (
    CONFIGMAPS,
    DDPJOBS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Body,
    Cluster,
    Resource,
)
from ddpjob.controller.jobrecord import JobRecord, job_record
from ddpjob.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    DDPJobError,
    InvalidJob,
    NotFound,
    Refused,
    Unavailable,
)
from ddpjob.json_depth import aside, read_json
from ddpjob.plan.decide import plan
from ddpjob.plan.decision import Deletion, Note, Plan
from ddpjob.plan.observed import Observed, PodRecord, Report, pod_record
from ddpjob.plan.proof import proofs
from ddpjob.plan.status import with_condition
from ddpjob.plan.strays import SPARED_SECONDS
from ddpjob.pods import render
from ddpjob.settings import Settings
from ddpjob.times import seconds_since, stamp

log = logging.getLogger(__name__)

PASSING_SECONDS = 5.0  # an error of the API server's is told once it has lasted for so long
_MAX_STEPS = (
    8  # a job takes four from nothing to its pods; more in one go means that something flaps
)
# What may take more than some milliseconds to plan.
_MANY_PODS = 2000  # 2 µs each
_MANY_FAILED = 100  # 40 µs each, for what it said
_MINOR = ("summary", "nodes", "progress", "observed_generation", "pods")


@dataclass
class Memory:
    """What is remembered of a job between two looks; nothing in it is needed to be right."""

    prepared: tuple[int, int] | None = None
    """(generation, attempt) whose Service and ConfigMap are known to exist."""
    stamp: render.PodStamp | None = None
    trouble: DDPJobError | None = None
    conflicts: int = 0
    trouble_at: float | None = None
    """Monotonic time of the first trouble of this attempt's."""
    judged: tuple[int, InvalidJob | None] = (0, None)
    """Generation of a running job, and why no pods could be made of it."""
    noise_at: float | None = None
    """Monotonic time at which nothing but peers' noise was seen first."""
    report: Report | None = None
    head: str = ""
    """uid of rank 0's pod of this attempt, whose agent is asked for progress."""
    made: tuple[int, dict[int, str]] = (-1, {})
    """An attempt, and by node rank what status is to keep of the uids of pods made in it."""
    strays: frozenset[str] = frozenset()
    """uids of pods of attempts that the job had not begun when both were last read."""
    spared: dict[str, float] = field(default_factory=dict)
    """uids of strays that could not be deleted, and the monotonic time of the next try."""
    version: str = ""
    """Of the job as this process last wrote it."""
    written_at: float = float("-inf")
    """Monotonic time of the last status write."""
    progress_at: float = float("-inf")
    """Monotonic time of the last status write that was about progress alone."""
    look_at: float = math.inf
    """Monotonic time at which the last plan is to be made again whatever happens: a deadline."""


@dataclass
class Caches:
    """Where the reconciler looks, and where it puts the answers to its own writes."""

    job: Callable[[str, str], JobRecord | None]
    """(namespace, name) → the job."""
    pods: Callable[[str, str], Iterable[PodRecord]]
    """(namespace, uid) of a job → the pods that name it as their controller."""
    put_job: Callable[[JobRecord], None]
    put_pod: Callable[[PodRecord], None]
    remove_pod: Callable[[str], None]
    remove_job: Callable[[str], None]


@dataclass
class Reconciler:
    """Brings jobs to where they should be, one step at a time."""

    cluster: Cluster
    caches: Caches
    agent: render.Agent
    settings: Settings
    progress_interval: Callable[[], float]
    """Seconds between two writes of one job's progress, as the number of running jobs has it
    now."""
    memories: dict[str, Memory] = field(default_factory=dict)
    """By uid of the job."""
    key: bytes = field(default_factory=lambda: token_bytes(32))
    """The secret of this process, by which pods are known as its own."""

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Do what there is to do for one job; seconds after which to look again, if need be.

        Raises ClusterError for what another try may mend.
        """
        looked = False
        for _ in range(_MAX_STEPS):
            record = self.caches.job(namespace, name)
            if record is None:
                return None
            memory = self.memories.setdefault(record.uid, Memory())
            memory.look_at = math.inf
            try:
                job = await aside(record.is_large, record.parse)
                step = await self._plan(job, memory, looked=looked)
                if record.is_part and step.is_idle(job.status):
                    if not memory.strays:
                        self.memories.pop(job.uid, None)
                    return step.look_again
                if record.is_part and step.status != job.status:  # deeds need no more than the part
                    whole = await self._whole(job)
                    if whole is None:
                        return None
                    job = whole
                    step = await self._plan(job, memory, looked=looked)
            except InvalidJob as error:
                await self._unreadable(record, error)
                return None
            look, looked = not looked and _rests_on_sight(job, step, memory), False
            if step.noise and memory.noise_at is None:
                memory.noise_at = time.monotonic()
            if _is_transition(job.status, step.status):
                await self._write_status(job, step, memory)
            elif look:
                await self._look(job)
                seen = self.caches.job(namespace, name)
                # Of a job that another operator has changed meanwhile, the pods are from before.
                looked = seen is not None and seen.resource_version == record.resource_version
                if looked:
                    memory.strays = self._ahead(job)
            elif step.delete_job:
                await self._delete_job(job)
                return None
            elif step.delete or step.expire or step.prepare or step.create:
                try:
                    await self._act(job, step, memory)
                except InvalidJob as error:
                    # Said in its status; what mends it is an edit, which comes as an event.
                    log.info("job=%s/%s refused: %s", namespace, name, error)
                    return step.look_again  # its deadlines go on
            else:
                return await self._settle(job, step, memory)
        return 0.1

    def seconds_to_look(self, namespace: str, name: str) -> float:
        """Until the job's next deadline, as its last plan has it; infinite without one."""
        record = self.caches.job(namespace, name)
        memory = self.memories.get(record.uid) if record else None
        return memory.look_at - time.monotonic() if memory else math.inf

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self.memories.pop(uid, None)

    def _observe(self, job: DDPJob, memory: Memory, *, looked: bool = False) -> Observed:
        ready = memory.prepared == (job.metadata.generation, job.status.attempt)
        return Observed(
            pods=tuple(self.caches.pods(job.namespace, job.uid)),
            looked=looked,
            children_ready=ready,
            trouble=memory.trouble,
            refused_seconds=_since(memory.trouble_at),
            invalid=memory.judged[1] if self._is_judged(job) else None,
            noise_seconds=_since(memory.noise_at),
            report=memory.report,
            spec_hash=memory.stamp.spec_hash if ready and memory.stamp else "",
            key=self.key,
            made=memory.made[1] if memory.made[0] == job.status.attempt else {},
            strays=memory.strays,
            spared=frozenset(uid for uid, until in memory.spared.items() if _since(until) < 0),
        )

    def _ahead(self, job: DDPJob) -> frozenset[str]:
        pods = self.caches.pods(job.namespace, job.uid)
        return frozenset(pod.uid for pod in pods if pod.attempt > job.status.attempt)

    async def _plan(self, job: DDPJob, memory: Memory, *, looked: bool = False) -> Plan:
        """What is to be done for the job as it is seen now."""
        await self._judge(job, memory)
        observed = self._observe(job, memory, looked=looked)
        step = await aside(_is_long(job, observed), plan, job, observed, time.time())
        memory.head = step.head
        again = math.inf if step.look_again is None else step.look_again
        memory.look_at = time.monotonic() + again
        return step

    def _is_judged(self, job: DDPJob) -> bool:
        return job.status.state in ("Starting", "Running")

    async def _judge(self, job: DDPJob, memory: Memory) -> None:
        """Find out, once a generation, whether an edit of a running job stops its next attempt."""
        generation = job.metadata.generation
        if not self._is_judged(job) or memory.judged[0] == generation:
            return
        memory.judged = generation, None
        try:
            await self._render(job)
        except InvalidJob as error:
            memory.judged = generation, error

    async def _render(self, job: DDPJob) -> render.PodStamp:
        """The job's pods. Raises InvalidJob where none can be made, or a rule cannot be judged."""

        def make() -> render.PodStamp:
            for problem in broken_expressions(job.spec.failure_policy):
                raise problem
            return render.pods(job, self.agent, self.settings.policy)

        record = self.caches.job(job.namespace, job.name)
        large = record is None or record.is_large
        return await aside(large or bool(job.spec.failure_policy.message_patterns()), make)

    async def _whole(self, job: DDPJob) -> DDPJob | None:
        """The job with all that the cache does not keep of one at rest. Raises InvalidJob."""
        try:
            body = await self.cluster.get(DDPJOBS, job.namespace, job.name)
        except NotFound:
            self.caches.remove_job(job.uid)
            return None
        # Of a size that nobody knows, and seldom. Kept first: what cannot be read is kept as well.
        self.caches.put_job(await aside(True, job_record, body))
        return await aside(True, DDPJob.parse, body)

    async def _look(self, job: DDPJob) -> None:
        """Take in the job's pods, then the job, as they are now.

        The status may be another operator's, who had seen pods that our watch has yet to bring; and
        a pod that we take for a running one may have ended, with a log to keep. The job comes last:
        one that is older than its pods would have them deleted.
        """
        labels = f"{names.JOB_UID_LABEL}={job.uid}"
        listing = await self.cluster.list(
            PODS, namespace=job.namespace, labels=labels, keep=pod_record
        )
        for record in listing.items:
            if record.owner_uid == job.uid:  # else it is another's news
                self.caches.put_pod(record)
        try:
            self.caches.put_job(
                job_record(await self.cluster.get(DDPJOBS, job.namespace, job.name))
            )
        except NotFound:
            self.caches.remove_job(job.uid)

    async def _settle(self, job: DDPJob, step: Plan, memory: Memory) -> float | None:
        """Nothing but counts or progress has changed, if anything: write that in its own time."""
        again = step.look_again
        if step.status != job.status:
            wait = self._due(job.status, step.status, memory) - time.monotonic()
            if wait <= 0:
                await self._write_status(job, step, memory)
            else:
                again = min(wait, again) if again is not None else wait
        return again

    def _due(self, old: Status, new: Status, memory: Memory) -> float:
        """Monotonic time from which this minor change may be written."""
        if old.nodes != new.nodes or old.pods != new.pods:
            return memory.written_at + self.settings.minor_status
        return max(
            memory.written_at + self.settings.minor_status,
            memory.progress_at + self.progress_interval(),
        )

    async def _write_status(self, job: DDPJob, step: Plan, memory: Memory) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "spec": job.spec.to_json(),  # ignored here, but the schema asks for it
            "status": step.status.to_json(),
        }
        try:
            stored = await self.cluster.update_status(DDPJOBS, job.namespace, body)
        except NotFound:
            self.caches.remove_job(job.uid)
            return
        memory.written_at = time.monotonic()
        if step.status.progress != job.status.progress:
            memory.progress_at = memory.written_at
        if step.status.attempt != job.status.attempt:
            memory.noise_at = memory.trouble = memory.trouble_at = None
            memory.report = memory.stamp = memory.prepared = None
        if step.status.pods and not (stored.get("status") or {}).get("pods"):
            told = "the definition of DDPJob is older than this operator: apply manifests/crd.yaml"
            await self._tell(job, Note("OldDefinition", told, warning=True))
            raise Refused(422, "OldDefinition", told)
        self.caches.put_job(job_record(stored))
        memory.version = stored["metadata"]["resourceVersion"]
        for note in step.notes:
            await self._tell(job, note)
        if step.drop_agent:
            await self._drop_agent(job)
        if step.status.state != job.status.state or step.status.attempt != job.status.attempt:
            log.info(
                "job=%s/%s state=%s attempt=%d restarts=%d",
                job.namespace,
                job.name,
                step.status.state,
                step.status.attempt,
                step.status.restarts,
            )

    async def _act(self, job: DDPJob, step: Plan, memory: Memory) -> None:
        """Delete, then prepare, then create.

        What refuses to be created is the job's trouble: said in its status, then raised.
        """
        answers = await asyncio.gather(
            *(self._delete_pod(doomed) for doomed in step.delete),
            *(self._expire_pod(late) for late in step.expire),
            return_exceptions=True,
        )
        for error, doomed in zip_longest(answers, step.delete):
            if doomed and doomed.stray and isinstance(error, ClusterError):
                log.warning("stray stays job=%s/%s error=%s", job.namespace, job.name, error)
                memory.spared[doomed.pod.uid] = time.monotonic() + SPARED_SECONDS
            elif error:
                raise error
        try:
            if step.prepare:
                await self._prepare(job, memory)
            if step.create:
                await self._create_pods(job, step.create, memory)
        except (InvalidJob, ClusterError) as error:
            await self._tell_trouble(job, error, memory)
            raise
        if step.prepare or step.create:
            memory.trouble, memory.trouble_at, memory.conflicts = None, None, 0

    async def _tell_trouble(
        self, job: DDPJob, error: InvalidJob | ClusterError, memory: Memory
    ) -> None:
        """Say in the job's status why nothing can be created.

        What may pass by itself, a webhook that does not answer say, only when it has lasted.
        """
        if memory.trouble_at is None:
            memory.trouble_at = time.monotonic()
        passes = not isinstance(error, InvalidJob | Refused | AlreadyExists)
        if passes and _since(memory.trouble_at) < PASSING_SECONDS:
            return
        memory.trouble = error
        said = await self._plan(job, memory)
        if _is_transition(job.status, said.status):
            await self._write_status(job, said, memory)

    async def _prepare(self, job: DDPJob, memory: Memory) -> None:
        """Render everything, so that nothing is created for a job that cannot be.

        Then Service, ConfigMap and NetworkPolicy.
        """
        memory.stamp = await self._render(job)
        memory.judged = job.metadata.generation, None
        children = [
            (SERVICES, render.service(job)),
            (CONFIGMAPS, render.config_map(job, self.agent)),
        ]
        if (network := render.network_policy(job, self.settings.policy)) is not None:
            children.append((NETWORK_POLICIES, network))
        elif job.metadata.generation > 1:  # there may be one from before an edit
            await self._drop(job, NETWORK_POLICIES, names.network_policy_name(job.name))
        await asyncio.gather(
            *(self._create_ours(job, resource, body, memory) for resource, body in children)
        )
        memory.prepared = (job.metadata.generation, job.status.attempt)

    async def _create_ours(
        self, job: DDPJob, resource: Resource, body: Body, memory: Memory
    ) -> None:
        """Create, or find that it exists and is ours; whatever else has the name is left alone."""
        try:
            await self.cluster.create(resource, job.namespace, body)
            return
        except AlreadyExists:
            existing = await self._get(resource, job.namespace, body["metadata"]["name"])
        owner = _controller(existing) if existing else None
        if existing and owner is not None and owner.get("uid") == job.uid:
            if resource in (NETWORK_POLICIES, CONFIGMAPS) and not _is_same(
                _content(existing), _content(body)
            ):
                # The job was edited while it was suspended, or somebody else made this for it. No
                # pod is there that a moment without it would leave open.
                await self._drop(job, resource, body["metadata"]["name"])
                await self.cluster.create(resource, job.namespace, body)
            if resource == SERVICES and not _leads(existing["spec"], body["spec"]):
                # Not ours to delete: the operator has no right to, of any Service.
                name = body["metadata"]["name"]
                words = f"Service {name} was edited and does not lead to the job's pods any more"
                raise AlreadyExists(409, "Edited", f"{words}: delete it, and it is made again")
            return
        self._name_taken(job, resource, body["metadata"]["name"], owner, memory)

    def _name_taken(
        self, job: DDPJob, resource: Resource, name: str, owner: Body | None, memory: Memory
    ) -> None:
        """Raise AlreadyExists.

        At first as something that passes, if an earlier job of this name may have left it.
        """
        text = f"{resource.kind} {name} exists and is not this job's; it is left alone"
        memory.conflicts += 1
        ours_once = owner is None or (owner.get("kind"), owner.get("name")) == (
            names.KIND,
            job.name,
        )
        if ours_once and memory.conflicts < 6:
            raise ClusterError(
                409, "AlreadyExists", text + " while the garbage collector may take it"
            )
        raise AlreadyExists(409, "AlreadyExists", text)

    async def _get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        try:
            return await self.cluster.get(resource, namespace, name)
        except NotFound:
            return None

    async def _create_pods(self, job: DDPJob, ranks: tuple[int, ...], memory: Memory) -> None:
        """All of them at once, bounded in flight.

        The first refusal is raised after all have answered.
        """
        assert memory.stamp is not None
        pods = memory.stamp
        own = proofs(self.key, job.uid, job.status.attempt, job.spec.nnodes)
        if memory.made[0] != job.status.attempt:
            memory.made = job.status.attempt, {}
        made = memory.made[1]
        slots = asyncio.Semaphore(self.settings.creates_per_job)
        refused: list[int] = []

        async def create(rank: int) -> None:
            async with slots:
                if refused:
                    return  # as the others would be
                try:
                    body = await self.cluster.create(
                        PODS, job.namespace, pods.body(rank, own.of(rank))
                    )
                except Refused:
                    refused.append(rank)
                    raise
            if (record := pod_record(body)) is not None:
                made[rank] = record.uid_print
                self.caches.put_pod(record)

        answers = await asyncio.gather(*map(create, ranks), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        # A name of ours that exists already is a retried request whose answer was lost: the watch
        # brings the pod.
        taken = [error for error in errors if isinstance(error, AlreadyExists)]
        for error in errors:
            if not isinstance(error, AlreadyExists):
                raise error
        if taken:
            name = names.pod_name(job.name, job.status.attempt, ranks[answers.index(taken[0])])
            self._name_taken(job, PODS, name, None, memory)

    async def _delete_pod(self, doomed: Deletion) -> None:
        pod = doomed.pod
        try:
            left = await self.cluster.delete(
                PODS, pod.namespace, pod.name, uid=pod.uid, grace_seconds=doomed.grace_seconds
            )
        except NotFound:
            # A Conflict is no such proof; where another pod has the name by now, the watch says so.
            self.caches.remove_pod(pod.uid)
            return
        record = pod_record(left) if left else None
        if record is not None:
            self.caches.put_pod(record)
        else:
            self.caches.remove_pod(pod.uid)

    async def _expire_pod(self, pod: PodRecord) -> None:
        """Have the pod's kubelet end it: its time is what it has been there for."""
        seconds = max(1, int(seconds_since(pod.started_at, time.time())))
        body = {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": seconds}}
        try:
            stored = await self.cluster.patch(PODS, pod.namespace, pod.name, body)
        except NotFound:
            self.caches.remove_pod(pod.uid)
            return
        if (record := pod_record(stored)) is not None:
            self.caches.put_pod(record)

    async def _delete_job(self, job: DDPJob) -> None:
        """The job's time is over; Kubernetes collects what it owns."""
        try:
            await self.cluster.delete(DDPJOBS, job.namespace, job.name, uid=job.uid)
        except NotFound:
            self.caches.remove_job(job.uid)

    async def _drop_agent(self, job: DDPJob) -> None:
        """The finished job's ConfigMap. Best effort: what is missed goes with the job."""
        used = {pod.agent_config for pod in self.caches.pods(job.namespace, job.uid)}
        used.add(names.agent_config_name(job.name, self.agent.digest))
        for name in sorted(used - {""}):
            await self._drop(job, CONFIGMAPS, name)

    async def _drop(self, job: DDPJob, resource: Resource, name: str) -> None:
        """Delete what has this name, if it is there and the job's."""
        existing = await self._get(resource, job.namespace, name)
        owner = _controller(existing) if existing else None
        if existing and owner and owner.get("uid") == job.uid:
            with suppress(NotFound, Conflict):
                uid = existing["metadata"]["uid"]
                await self.cluster.delete(resource, job.namespace, name, uid=uid)

    async def _tell(self, job: DDPJob | JobRecord, note: Note) -> None:
        """An Event for `kubectl describe`. A lost one is not worth a retry.

        Its name says what it says, so one that exists already is the same.
        """
        now = time.time()
        attempt = job.status.attempt if isinstance(job, DDPJob) else 0
        what = f"{job.uid} {attempt} {note.reason} {note.message}"
        name = f"{job.name}.{sha256(what.encode()).hexdigest()[:16]}"
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "message": note.message[:1024],
            "source": {"component": "ddpjob"},
            "firstTimestamp": stamp(now),
            "lastTimestamp": stamp(now),
            "count": 1,
        }
        try:
            await self.cluster.create(EVENTS, job.namespace, body)
        except AlreadyExists:
            return
        except ClusterError as error:
            log.warning("event lost job=%s/%s error=%s", job.namespace, job.name, error)

    async def _unreadable(self, record: JobRecord, error: InvalidJob) -> None:
        """A job that an older or looser schema let in: say so in its status, touch nothing else."""
        body = read_json(record.body)
        if record.is_part:  # its status too
            whole = await self._get(DDPJOBS, record.namespace, record.name)
            if whole is None or whole["metadata"]["uid"] != record.uid:
                return
            body = {name: whole.get(name) for name in ("apiVersion", "kind", "metadata", "status")}
        old = read_status(body.get("status") or {})
        status = with_condition(old, "Accepted", False, "Invalid", str(error), now=time.time())
        if status == old:
            return
        status = status.model_copy(update={"state": old.state or "Pending"})
        # The schema asks for a spec, which the API server does not read here.
        body |= {"spec": {"image": "-"}, "status": status.to_json()}
        try:
            stored = await self.cluster.update_status(DDPJOBS, record.namespace, body)
        except (Refused, Unavailable):  # it may be so large that etcd has no room for a status
            await self._tell(record, Note("Invalid", str(error), warning=True))
            raise
        self.caches.put_job(job_record(stored))


def _is_long(job: DDPJob, observed: Observed) -> bool:
    """Whether a plan may take more than some milliseconds.

    A thread for what takes less would only make both sides wait for each other.
    """
    if len(observed.pods) > _MANY_PODS or job.spec.failure_policy.message_patterns():
        return True
    return sum(pod.result == "failed" for pod in observed.pods) > _MANY_FAILED


def _since(moment: float | None) -> float:
    """Seconds since this monotonic time; 0 without one."""
    return 0.0 if moment is None else time.monotonic() - moment


def _controller(obj: Body) -> Body | None:
    owners: list[Body] = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def _leads(found: Body, wanted: Body) -> bool:
    """Whether a Service names the pods that it should; the ports of a headless one do nothing."""
    return all(found.get(name) == value for name, value in wanted.items() if name != "ports")


def _content(obj: Body) -> Body:
    """What an object says, without what it is."""
    parts = ("spec", "data", "binaryData", "immutable")
    return {name: obj[name] for name in parts if name in obj}


def _is_same(found: Any, wanted: Any) -> bool:
    """Whether nothing is missing and nothing more is there: a further peer lets somebody in.

    The API server drops empty lists, and says TCP where no protocol is named. An empty object is
    not nothing: `namespaceSelector: {}` is all namespaces.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        default = {"protocol": "TCP"} if {"port", "protocol"} & (wanted.keys() | found) else {}
        one, two = ({**default, **each} for each in (found, wanted))
        return all(_is_same(one.get(name), two.get(name)) for name in one.keys() | two.keys())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_is_same, found, wanted))
    return found == wanted or [found, wanted] in ([[], None], [None, []])


def _rests_on_sight(job: DDPJob, step: Plan, memory: Memory) -> bool:
    """Whether the step would be wrong if another operator had seen, or done, more than this one.

    What it believes to run may have ended; what seems gone may not have arrived here yet; pods may
    be missing because the attempt is over. Not the first pods of a job whose status is our own.
    """
    first = job.status.attempt == 0 and job.metadata.resource_version == memory.version
    return step.look or bool(step.delete) or bool(step.create) and not first


def _is_transition(old: Status, new: Status) -> bool:
    """Whether more has changed than counts and progress.

    That is written at once, before anything else.
    """
    blank = dict.fromkeys(_MINOR)
    if old.state is None and new.state == "Pending":
        # That alone can wait for what follows.
        new = new.model_copy(update={"state": None, "goodput": old.goodput})
    # What proves our pods must be known before there is one; their uids come with the counts.
    roots = [{root for table in status.pods for root in table.roots} for status in (old, new)]
    return not roots[1] <= roots[0] or old.model_copy(update=blank) != new.model_copy(update=blank)
