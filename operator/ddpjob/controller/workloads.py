"""Kueue: reads what a job's Workload says, and makes, ends and answers it."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ddpjob import names
from ddpjob.api import FINISHED, Admission, DDPJob
from ddpjob.cluster import Cluster, Resource
from ddpjob.controller.memory import Memory, elapsed
from ddpjob.errors import AlreadyExists, ClusterError, Conflict, InvalidJob, NotFound, Refused
from ddpjob.json_depth import Body
from ddpjob.plan.model import Decision, Queue, Workload
from ddpjob.plan.own import BEGUN
from ddpjob.plan.workload import admission_of, wish_of, workload_record
from ddpjob.pods.workload import workload
from ddpjob.settings import Settings
from ddpjob.times import timestamp

log = logging.getLogger(__name__)

# After an error that holds nothing up.
UNHEARD_SECONDS = 30.0
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", False)
CLASSES = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", False
)
POD_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)


class Workloads:
    """The Workloads of the jobs that have a queue of Kueue."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        find: Callable[[DDPJob], Workload | None],
        put: Callable[[Workload], None],
        remove: Callable[[str], None],
        trouble: Callable[[], str],
        render: Callable[[DDPJob], Awaitable[object]],
    ) -> None:
        """`find`, `put` and `remove` are the cache's; `trouble` says why it is not full.

        `render` raises InvalidJob for a job that cannot have pods.
        """
        self._render = render
        self._cluster, self._settings = cluster, settings
        self._find, self._put, self._remove, self._trouble = find, put, remove, trouble

    async def look(self, job: DDPJob, memory: Memory) -> Queue | None:
        """Return what the next decision has to know of Kueue. Raises InvalidJob or ClusterError."""
        if not self._settings.kueue or job.spec.managed_by not in (None, names.MANAGER):
            return None
        waits, found = names.QUEUE_LABEL in job.metadata.labels, self._find(job)
        error, until = memory.unasked
        if trouble := self._trouble() or (error if elapsed(until) < 0 else ""):
            return Queue(waits, trouble=trouble)
        hears, state = elapsed(memory.unheard_until) >= 0, job.status.state
        if not waits or state in ("Starting", "Running", *FINISHED) or job.spec.suspend:
            return Queue(waits, workload=found, hears=hears)
        wish, admission = "", None
        try:
            wish = await self._wish(job, memory)
            if found is not None and found.admitted and not found.evicted:
                admission = await self._admission(found, memory)
        except InvalidJob:
            if state in BEGUN:  # the next attempt shows it
                return Queue(waits, workload=found, hears=hears)
            if found is not None:  # it must not keep quota from others
                await self._delete(found)
            raise
        except (ClusterError, ValueError) as error:  # a flavor asks for what a pod cannot have
            return Queue(waits, workload=found, trouble=str(error))
        return Queue(waits, wish, found, admission, hears=hears)

    async def carry_out(self, job: DDPJob, decision: Decision, memory: Memory) -> None:
        """Do what was decided about the job's Workload. Raises ClusterError or InvalidJob.

        Whether Kueue hears that all pods run holds nothing up.
        """
        found, action = self._find(job), decision.workload
        if action in ("replace", "delete") and found is not None:
            await self._delete(found)
        if action == "replace":
            await self._create(job)
        elif action == "release" and found is not None:
            await self._answer(found, action)
        elif action in ("ready", "unready") and found is not None:
            try:
                await self._answer(found, action)
            except ClusterError as error:
                log.warning("PodsReady of job=%s/%s: %s", job.namespace, job.name, error)
                memory.unheard_until = time.monotonic() + UNHEARD_SECONDS

    async def _delete(self, found: Workload) -> None:
        with suppress(NotFound):
            await self._cluster.delete(WORKLOADS, found.namespace, found.name, uid=found.uid)
        self._remove(found.uid)

    async def refresh(self, job: DDPJob, memory: Memory) -> None:
        """Put the job's Workload, if it may have one, into the cache as the API server has it."""
        old = self._find(job)
        if not self._settings.kueue or not (old or job.status.admission):
            return
        name = names.workload_name(job.name, job.uid)
        try:
            self._take(job, await self._cluster.get(WORKLOADS, job.namespace, name))
        except ClusterError as error:
            if not isinstance(error, NotFound) or name not in error.message:
                # Nothing is known of it; if the API is gone, so are all Workloads: no eviction.
                memory.unasked = str(error), time.monotonic() + UNHEARD_SECONDS
            elif old is not None:
                self._remove(old.uid)

    def _take(self, job: DDPJob, body: Body) -> bool:
        """Put a Workload into the cache, if it is the job's."""
        record = workload_record(body)
        if record is None or record.owner_uid != job.uid:
            return False
        self._put(record)
        return True

    async def _wish(self, job: DDPJob, memory: Memory) -> str:
        """Return the hash of what the Workload is to ask for."""
        queue, priority = (job.metadata.labels.get(name, "") for name in names.LABELS)
        key = (job.metadata.generation, queue, priority)
        if memory.wish is None or memory.wish[0] != key:
            memory.wish = (key, wish_of((await self._body(job))["spec"]))
        return memory.wish[1]

    async def _body(self, job: DDPJob) -> Body:
        """Return the Workload as it is to be. Raises InvalidJob; ClusterError without its class."""
        await self._render(job)
        priority = job.metadata.labels.get(names.PRIORITY_LABEL, "")
        template = (job.spec.template or {}).get("spec") or {}
        reference, value = {}, 0
        if name := priority or template.get("priorityClassName"):
            kind = CLASSES if priority else POD_CLASSES
            value = (await self._cluster.get(kind, job.namespace, name))["value"]
            reference = {"group": kind.group, "kind": kind.kind, "name": name}
        return workload(job, self._settings.policy, reference, value)

    async def _admission(self, found: Workload, memory: Memory) -> Admission:
        """Return what Kueue has admitted the job with. Raises ClusterError."""
        key = (found.uid, found.resource_version)
        if memory.admission is None or memory.admission[0] != key:
            needed = {name for part in found.assignments for name in part.flavors}
            flavors = {
                name: (await self._cluster.get(FLAVORS, found.namespace, name)).get("spec") or {}
                for name in needed
            }
            memory.admission = (key, admission_of(found, flavors))
        return memory.admission[1]

    async def _create(self, job: DDPJob) -> None:
        body = await self._body(job)
        name = body["metadata"]["name"]
        try:
            stored = await self._cluster.create(WORKLOADS, job.namespace, body)
        except AlreadyExists:
            stored = await self._cluster.get(WORKLOADS, job.namespace, name)
        if not self._take(job, stored):
            text = f"Workload {name} exists and is not this job's; it is left alone"
            raise AlreadyExists(409, "AlreadyExists", text)
        found = self._find(job)
        if found is None or found.wish != wish_of(body["spec"]):
            text = f"Workload {name} is not as it was made: a field of a pod's resources that "
            text += "Kubernetes does not know, a finalizer, or somebody who changes it"
            raise Refused(422, "Changed", text)

    async def _answer(self, found: Workload, action: str) -> None:
        """Give the Workload's quota back, or say whether all pods run, as Kueue's own jobs do.

        Raises ClusterError; Conflict if it is to be judged anew.
        """
        body = await self._cluster.get(WORKLOADS, found.namespace, found.name)
        is_newer = body["metadata"]["resourceVersion"] != str(found.resource_version)
        if action == "release" and is_newer:  # it may have been admitted again
            raise Conflict(409, "Conflict", f"Workload {found.name} has changed")
        status = body.setdefault("status", {})
        conditions = {each["type"]: each for each in status.get("conditions") or []}

        def say(kind: str, value: bool, reason: str, message: str) -> None:
            old, truth = conditions.get(kind, {}), str(value)
            since = old.get("lastTransitionTime") if old.get("status") == truth else None
            conditions[kind] = {
                "type": kind,
                "status": truth,
                "reason": reason,
                "message": message,
                "lastTransitionTime": since or timestamp(time.time() + self._cluster.ahead),
                "observedGeneration": body["metadata"].get("generation", 0),
            }

        if action == "release":
            evicted = conditions.get("Evicted", {})
            reason, message = evicted.get("reason", "Evicted"), evicted.get("message", "")
            say("Requeued", reason in _REQUEUED_AT_ONCE, reason, message)
            say("QuotaReserved", False, "Pending", message)
            say("Admitted", False, "NoReservation", "The workload has no reservation")
            say("PodsReady", False, "WaitForStart", "No pods run")
            status.pop("admission", None)
        elif action == "ready":
            say("PodsReady", True, "Started", "All pods run")
        else:
            say("PodsReady", False, "WaitForRecovery", "The pods start again")
        status["conditions"] = list(conditions.values())
        stored = await self._cluster.update_status(WORKLOADS, found.namespace, body)
        if (record := workload_record(stored)) is not None:
            self._put(record)


# Other evictions have a pause, or a reason that somebody has to take away; Kueue sees to both.
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
