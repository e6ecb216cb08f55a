"""One job's loop: observe, decide, carry out, until there is nothing left to do."""

import logging
import math
import time
from functools import partial

from ddpjob import names
from ddpjob.api import DDPJob, Status, read_status
from ddpjob.cluster import DDPJOBS, PODS, Cluster
from ddpjob.controller.agents import Agents
from ddpjob.controller.children import AGENT_SECONDS, Children
from ddpjob.controller.events import is_pruned, is_transition, log_state, record_event
from ddpjob.controller.memory import (
    Caches,
    JobRecord,
    Memory,
    elapsed,
    job_record,
    place_of,
)
from ddpjob.controller.observer import Observer
from ddpjob.controller.programs import Programs, checks_edits
from ddpjob.controller.recovery import recover
from ddpjob.controller.workloads import Workloads
from ddpjob.errors import AlreadyExists, ClusterError, InvalidJob, NotFound, Refused, Unavailable
from ddpjob.json_depth import Body, aside, read_json
from ddpjob.plan.columns import with_columns
from ddpjob.plan.decide import decide
from ddpjob.plan.model import Decision, Event, Observed, Queue
from ddpjob.plan.own import made_of
from ddpjob.plan.podrecord import pod_record
from ddpjob.plan.reasons import INVALID
from ddpjob.plan.spares import AGAIN_SECONDS
from ddpjob.plan.status import with_condition
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

# An error that may pass by itself enters the status after so long.
PASSING_SECONDS = 5.0
# A new job takes four turns in one call: prepare, write Starting, create, settle. After more than
# this its decisions alternate, and other jobs have their turn.
_MAX_TURNS = 8
# Decisions that may take more than some milliseconds: 2 µs for a pod, 40 µs for a failed one's
# message.
_MANY_PODS = 2000
_MANY_FAILED = 100


class Reconciler:
    """Brings jobs to where they should be, one decision at a time."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        children: Children,
        settings: Settings,
        agents: Agents,
        workloads: Workloads,
        observer: Observer,
    ) -> None:
        self.cluster = cluster
        self.caches = caches
        self.children = children
        self.programs = Programs(cluster, children)
        self.settings = settings
        self.agents = agents
        self.workloads = workloads
        self.observer = observer
        self.memories: dict[str, Memory] = {}
        """By uid of the job."""

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Do what there is to do for one job; return the seconds until it is due again, if any.

        Raises ClusterError for what another try may mend.
        """
        confirmed = False
        for _ in range(_MAX_TURNS):
            record = self.caches.job(namespace, name)
            if record is None:
                return None
            memory = self.memories.setdefault(record.uid, Memory())
            memory.requeue_at = math.inf
            try:
                job = await aside(record.is_large, record.parse)
                if wait := await recover(self.cluster, self.caches, job, memory):
                    return wait
                decision = await self._decide(job, memory, confirmed=confirmed)
                if record.is_part and decision.is_idle(job.status):
                    if not memory.strays:
                        self.memories.pop(job.uid, None)
                    return decision.requeue_after
                # Actions need no more than the part, but a status is written as a whole.
                if record.is_part and decision.status != job.status:
                    whole = await self._whole(job)
                    if whole is None:
                        return None
                    job = whole
                    decision = await self._decide(job, memory, confirmed=confirmed)
            except InvalidJob as error:
                await self._report_invalid(record, error)
                return None
            confirm = not confirmed and _needs_confirmation(job, decision, memory)
            confirmed = False
            if decision.only_secondary and memory.secondary_at is None:
                memory.secondary_at = time.monotonic()
            # The status first: nothing else is done before it is stored.
            if is_transition(job.status, decision.status):
                await self._write_status(job, decision, memory)
            # Then the API server itself is read, since another operator may have done more.
            elif confirm:
                await self._refresh(job, memory)
                seen = self.caches.job(namespace, name)
                # If the job has changed meanwhile, its pods were listed before the change.
                confirmed = seen is not None and seen.resource_version == record.resource_version
                if confirmed:
                    ahead = (p for p in self.caches.pods(job) if p.attempt > job.status.attempt)
                    memory.strays = frozenset(pod.uid for pod in ahead)
            elif decision.delete_job:
                await self.children.delete_job(job)
                return None
            elif decision.acts:
                try:
                    await self._carry_out(job, decision, memory)
                except InvalidJob as error:
                    # The status has the error by now. An edit corrects it, and comes as an event.
                    log.info("job=%s/%s refused: %s", namespace, name, error)
                    return decision.requeue_after  # its deadlines go on
            # Nothing is left to do but to write counts and progress.
            else:
                return await self._settle(job, decision, memory)
        return 0.1

    def seconds_to_requeue(self, namespace: str, name: str) -> float:
        """Return the seconds until the job's next deadline; infinity without one."""
        record = self.caches.job(namespace, name)
        memory = self.memories.get(record.uid) if record else None
        return memory.requeue_at - time.monotonic() if memory else math.inf

    def _observe(
        self, job: DDPJob, memory: Memory, queue: Queue | None = None, *, confirmed: bool = False
    ) -> Observed:
        place, pods = place_of(job), {pod.uid: pod for pod in self.caches.pods(job)}
        made = memory.made[1] if memory.made[0] == made_of(job.status) else {}
        found = memory.rendered if memory.rendered and memory.rendered.place == place else None
        return Observed(
            pods=(*pods.values(), *memory.left(job.status, pods, made)),
            confirmed=confirmed,
            children_ready=memory.prepared == place,
            create_error=memory.create_error,
            refused_seconds=elapsed(memory.create_error_at),
            edit_error=found.error if found and checks_edits(job) else None,
            look_seconds=found.look_seconds if found and checks_edits(job) else math.inf,
            secondary_seconds=elapsed(memory.secondary_at),
            report=memory.report,
            round_status=memory.round_status,
            ordered=memory.ordered(job.status.attempt),
            queue=queue,
            saved_seconds=memory.saved_seconds,
            silent=memory.silent.get(made_of(job.status), frozenset()),
            spec_hash=found.spec_hash if found else "",
            program=found.program if found else "",
            key=self.children.key,
            made=made,
            strays=memory.strays,
            spares_wait=AGAIN_SECONDS - elapsed(memory.spares_at),
            spared=frozenset(uid for uid, until in memory.spared.items() if elapsed(until) < 0),
        )

    async def _decide(self, job: DDPJob, memory: Memory, *, confirmed: bool = False) -> Decision:
        memory.enter(job.status.attempt, job.status.round, made_of(job.status))
        await self.programs.check(job, memory)
        queue = await self.workloads.look(job, memory)
        observed = self._observe(job, memory, queue, confirmed=confirmed)
        # All other times are the API server's, and a machine's clock may be wrong by hours.
        now = time.time() + self.cluster.ahead
        decision = await aside(_is_long(job, observed), decide, job, observed, now)
        memory.head = decision.head
        memory.order = decision.order
        self.agents.groups.tell(memory.head, memory.order)
        after = math.inf if decision.requeue_after is None else decision.requeue_after
        memory.requeue_at = time.monotonic() + after
        return decision

    async def _whole(self, job: DDPJob) -> DDPJob | None:
        """Read the job, of which the cache keeps only a part while it is at rest.

        Returns None if the job is gone. Raises InvalidJob.
        """
        body = await self._read_again(job)
        return (
            None if body is None else await aside(True, partial(DDPJob.parse, is_stored=True), body)
        )

    async def _read_again(self, job: DDPJob) -> Body | None:
        """Put the job into the cache, if only to find it invalid; return it, None if it is gone."""
        try:
            body = await self.cluster.get(DDPJOBS, job.namespace, job.name)
        except NotFound:
            self.caches.remove_job(job.uid)
            return None
        # In a thread, since its size is unknown, and this is seldom.
        self.caches.put_job(await aside(True, job_record, body))
        return body

    async def _refresh(self, job: DDPJob, memory: Memory) -> None:
        """Put the job's pods, then the job, into the caches as the API server has them now.

        Another operator may have written the status after it saw pods that our watch has yet to
        bring. A pod that seems to run may have ended, and its log must be kept. The job comes last:
        if it were older than its pods, they would be deleted.
        """
        labels = f"{names.JOB_UID_LABEL}={job.uid}"
        listing = await self.cluster.list(
            PODS, namespace=job.namespace, labels=labels, keep=pod_record
        )
        for record in listing.items:
            if record.owner_uid == job.uid:  # others only wear its label
                self.caches.put_pod(record)
        await self.workloads.refresh(job, memory)
        await self._read_again(job)

    async def _settle(self, job: DDPJob, decision: Decision, memory: Memory) -> float | None:
        """Write counts and progress when they are due; return the seconds until then."""
        after = decision.requeue_after
        pods = self.caches.pods(job)
        # A kubelet may still look for the ConfigMap with the agent.
        if job.spec.has_agent and any(p.node and p.live and not p.running for p in pods):
            try:
                await self.children.provide_agent(job)
            except ClusterError as error:
                log.warning("agent for job=%s/%s: %s", job.namespace, job.name, error)
            after = min(AGENT_SECONDS, math.inf if after is None else after)
        if decision.status != job.status:
            wait = self._due(job.status, decision.status, memory) - time.monotonic()
            if wait <= 0:
                await self._write_status(job, decision, memory)
            else:
                after = min(wait, after) if after is not None else wait
        return after

    def _due(self, old: Status, new: Status, memory: Memory) -> float:
        """Monotonic time from which a change of counts or progress may be written."""
        soon = memory.written_at + self.settings.minor_status
        if old.nodes != new.nodes or old.pods != new.pods:
            return soon
        return max(soon, memory.progress_at + self.agents.write_interval())

    async def _write_status(self, job: DDPJob, decision: Decision, memory: Memory) -> None:
        """Write the status under the job's resourceVersion, then record the Events.

        Raises ClusterError. A Conflict means that the decision was made of an older job.
        """
        old, new = job.status, decision.status
        body: Body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "spec": job.spec.to_json(),  # ignored here, but the schema asks for it
            "status": new.to_json(),
        }
        try:
            stored = await self.cluster.update_status(DDPJOBS, job.namespace, body)
        except NotFound:
            self.caches.remove_job(job.uid)
            return
        memory.written_at = time.monotonic()
        if new.progress != old.progress:
            memory.progress_at = memory.written_at
        if is_pruned(body["status"], stored.get("status") or {}):
            text = "the definition of DDPJob is older than this operator: apply manifests/crd.yaml"
            await record_event(self.cluster, job, Event("OldDefinition", text, warning=True))
            raise Refused(422, "OldDefinition", text)
        self.caches.put_job(job_record(stored))
        memory.version = stored["metadata"]["resourceVersion"]
        self.observer.wrote(job, new, time.time() + self.cluster.ahead)
        events = decision.events
        if (new.state, new.round) == ("Running", 0) != (old.state, old.round):
            warning = await self.children.gangs.warning(job)
            events += (warning,) if warning else ()
        for event in events:
            await record_event(self.cluster, job, event)
        if (new.state, new.attempt, new.round) != (old.state, old.attempt, old.round):
            log_state(job, new)

    async def _carry_out(self, job: DDPJob, decision: Decision, memory: Memory) -> None:
        """Delete, then prepare, then create.

        Raises InvalidJob or ClusterError where something cannot be created. The status has the
        error by then; of spares there is an Event.
        """
        await self.children.end_pods(job, decision, memory)
        for_spares = job.status.state == "Running" and not decision.workload
        if for_spares and decision.create:
            memory.spares_at = time.monotonic()
        try:
            if decision.workload:
                await self.workloads.carry_out(job, decision, memory)
            if decision.prepare:
                await self.children.prepare(job, memory)
            if decision.create:
                await self.children.create_pods(job, decision.create, memory)
        except (InvalidJob, ClusterError) as error:
            if for_spares:  # the group needs none
                memory.spares_at = time.monotonic()
                event = Event("SparesRefused", f"no spare is created: {error}", warning=True)
                return await record_event(self.cluster, job, event)
            await self._report_create_error(job, error, memory)
            raise
        if decision.prepare or decision.create or decision.workload:
            memory.create_error, memory.create_error_at, memory.conflicts = None, None, 0

    async def _report_create_error(
        self, job: DDPJob, error: InvalidJob | ClusterError, memory: Memory
    ) -> None:
        """Write into the status why nothing can be created.

        An error that may pass by itself, of a webhook that does not answer for example, is written
        once it has lasted for PASSING_SECONDS.
        """
        if memory.create_error_at is None:
            memory.create_error_at = time.monotonic()
        passes = not isinstance(error, InvalidJob | Refused | AlreadyExists)
        if passes and elapsed(memory.create_error_at) < PASSING_SECONDS:
            return
        memory.create_error = error
        decision = await self._decide(job, memory)
        if is_transition(job.status, decision.status):
            await self._write_status(job, decision, memory)

    async def _report_invalid(self, record: JobRecord, error: InvalidJob) -> None:
        """Write into the status that the job is invalid, and touch nothing else.

        An older or looser schema has let such a job in.
        """
        body: Body = read_json(record.body)
        if record.is_part:  # and so is its status
            try:
                whole = await self.cluster.get(DDPJOBS, record.namespace, record.name)
            except NotFound:
                return
            if whole["metadata"]["uid"] != record.uid:
                return
            body = {name: whole.get(name) for name in ("apiVersion", "kind", "metadata", "status")}
        old = read_status(body.get("status") or {})
        now = time.time() + self.cluster.ahead
        status = with_condition(old, INVALID, str(error), now=now)
        if status == old:
            return
        status = status.model_copy(update={"state": old.state or "Pending"})
        status = with_columns(old, status, (), now)
        # The schema asks for a spec, which the API server does not read here.
        body |= {"spec": {"image": "-"}, "status": status.to_json()}
        try:
            stored = await self.cluster.update_status(DDPJOBS, record.namespace, body)
        except (Refused, Unavailable):  # it may be so large that etcd has no room for a status
            await record_event(self.cluster, record, Event(INVALID.name, str(error), warning=True))
            raise
        self.caches.put_job(job_record(stored))


def _is_long(job: DDPJob, observed: Observed) -> bool:
    """Whether a decision may take more than some milliseconds.

    A shorter one is made in the event loop, where it costs less than a change of threads.
    """
    if len(observed.pods) > _MANY_PODS or job.spec.failure_policy.message_patterns():
        return True
    exits = observed.round_status.exits if observed.round_status else ()  # read in each decision
    return len(exits) + sum(pod.result == "failed" for pod in observed.pods) > _MANY_FAILED


def _needs_confirmation(job: DDPJob, decision: Decision, memory: Memory) -> bool:
    """Whether the decision would be wrong if another operator had seen, or done, more.

    Pods that seem to run may have ended; pods that seem gone may not have arrived here yet; pods
    may be missing because the attempt is over. The first pods of a job whose status this process
    has written need no confirmation.
    """
    first = job.status.attempt == 0 and job.metadata.resource_version == memory.version
    is_final = decision.delete_job or bool(decision.delete)  # a field may have changed meanwhile
    is_final |= decision.workload in ("replace", "delete", "release")
    return decision.confirm or is_final or bool(decision.create) and not first
