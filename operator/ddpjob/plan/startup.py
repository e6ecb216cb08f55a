"""How an attempt's pods come to be: the start-up deadline, and what is created when. Pure."""

import math
from dataclasses import replace

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.errors import AlreadyExists, InvalidJob
from ddpjob.plan.cleanup import end_older
from ddpjob.plan.decision import Decision, Event, requeue
from ddpjob.plan.group import Group
from ddpjob.plan.observed import Observed
from ddpjob.plan.reasons import (
    ACCEPTED,
    AGENT_RUNS,
    CREATE_REFUSED,
    INVALID,
    LAUNCHER_NONE,
    NAME_TAKEN,
    NOT_STARTED,
    RESUMED,
    SPEC_CHANGED,
    STARTING,
)
from ddpjob.plan.restart import restart, with_own_root
from ddpjob.plan.silent import silent_nodes
from ddpjob.plan.status import CREATING, with_condition, with_history
from ddpjob.plan.strays import UNBEGUN_SECONDS, name_taken
from ddpjob.plan.termination import with_rank
from ddpjob.plan.waiting import first_stuck
from ddpjob.times import seconds_since, timestamp


def seconds_to_start(group: Group, status: Status) -> float:
    """Return the seconds until `startupDeadlineSeconds`, or infinity if nothing is to start.

    The deadline counts from the last pod's creation, and from the first refusal of one.
    """
    observed, current, now = group.observed, group.current, group.now
    limit = group.job.spec.startup_deadline_seconds
    # A restart in place waits for no pods.
    starting = status.state in ("Starting", "Restarting") and status.round == 0
    starting = starting and not any(pod.live for pod in group.pods.older)
    if limit is None or not starting:
        return math.inf
    created = [pod.created_at for pod in current if pod.created_at]
    if not current and observed.create_error is None:
        return math.inf  # nothing has been tried yet: old pods, a pause, no operator
    begun = [status.goodput.since, status.budget.next_restart_time, *sorted(created)[-1:]]
    waited = [seconds_since(time, now) for time in begun if time]
    if observed.create_error is not None:
        waited.append(observed.refused_seconds)
    return limit - min(waited, default=0.0)


def not_started(group: Group, status: Status) -> api.Failure | None:
    """Return the failure that a part of the group could not be started, if there is one.

    A pod that pulls its image, or has it, counts as started where its kubelet shows that: before
    Kubernetes 1.36 a pod without its first image looks like one without volumes or network.
    """
    job, observed, current = group.job, group.observed, group.current
    missing = set(range(job.spec.nnodes)) - {pod.rank for pod in current} - group.succeeded
    early = [pod for pod in current if pod.live and (not pod.node or pod.without_sandbox)]
    pod = first_stuck(current) or min(early, key=lambda pod: pod.rank, default=None)
    if pod is None and not missing:
        return None
    rank = pod.rank if pod else min(missing)
    name = pod.name if pod else names.pod_name(job.name, status.attempt, rank)
    words = (
        pod.message or pod.reason if pod else str(observed.create_error or "it was never created")
    )
    if pod and not pod.node and not words:
        words = "no scheduler has reported on it"
    if pod and pod.without_sandbox:
        words = "its volumes or its network are not there, or, before Kubernetes 1.36, its image"
        words += "; kubectl describe pod says which"
    found = api.Failure(
        attempt=status.attempt,
        pod=name,
        node=pod.node or None if pod else None,
        reason=NOT_STARTED,
        message=f"not started within {job.spec.startup_deadline_seconds} s: {words}"[:4096],
        time=timestamp(group.now),
    )
    return with_rank(found, job.spec.processes_per_node)


def create_missing(group: Group, status: Status) -> Decision:
    """Return the next decision on the way to the missing pods.

    Pods of older attempts are deleted and waited for, then the pause; then the job is prepared, is
    Starting, and its pods are created.
    """
    job, pods, observed, now = group.job, group.pods, group.observed, group.now
    current, older = pods.current, pods.older
    silent = silent_nodes(status, now)
    decision = end_older(status, older, now, silent)
    present = {pod.rank for pod in current} | group.succeeded
    missing = tuple(rank for rank in range(job.spec.nnodes) if rank not in present)
    if not missing:
        if observed.edit_error is not None:
            words = f"{observed.edit_error}; the pods were made before this edit"
            status = with_condition(status, INVALID, words, now=now)
            return replace(decision, status=status)
        return replace(decision, status=_accepted(job, status, now))
    if any(pod.live for pod in older):
        return decision
    if early := [pod for pod in pods.ahead if pod.live]:
        words = "is of an attempt that this job has not begun, and is deleted once it is "
        words += f"{UNBEGUN_SECONDS:.0f} s old"
        return replace(decision, status=name_taken(status, early[0], words, now))
    if taken := [pod for pod in pods.strays if pod.rank in missing]:
        words = "is not this job's own, and is deleted"
        return replace(decision, status=name_taken(status, taken[0], words, now))
    wait = -seconds_since(status.budget.next_restart_time, now)
    backoff = job.spec.failure_policy.backoff_seconds
    if 0 < wait <= max(backoff.cap, backoff.first) + 1:  # only a wrong clock wrote a longer one
        return requeue(decision, wait)
    if observed.create_error is not None:
        status = _refused(status, observed, now)
    if not observed.children_ready:
        return replace(decision, status=status, prepare=True)
    if any(pod.spec_hash != observed.spec_hash for pod in current):
        message = "the job was edited while its pods were being created"
        event = Event("Restarting", message)
        status = with_history(status, SPEC_CHANGED, now)
        return replace(restart(group, status, SPEC_CHANGED, message), events=(event,))
    # Another operator may have begun this attempt. Then this one's root is written first.
    known = with_own_root(job, status, observed)
    if status.state not in ("Starting", "Restarting"):
        return replace(decision, status=_starting(job, known, now))
    return replace(decision, status=known, create=missing if known == status else ())


def _starting(job: DDPJob, status: Status, now: float) -> Status:
    """Return `status` as Starting.

    From here on the spec cannot change, so all pods of the attempt are made from one spec.
    """
    status = status.model_copy(
        update={
            "state": "Starting",
            "world_size": job.spec.world_size,
            "start_time": status.start_time or timestamp(now),
            "nodes": status.nodes.model_copy(update={"desired": job.spec.nnodes}),
        }
    )
    status = _accepted(job, status, now)
    if status.condition("Suspended"):
        message = "spec.suspend is false"
        status = with_condition(status, RESUMED, message, now=now)
    status = with_condition(status, STARTING, CREATING, now=now)
    return status


def _accepted(job: DDPJob, status: Status, now: float) -> Status:
    message = "the job can be rendered and its names are free"
    status = with_condition(status, ACCEPTED, message, now=now)
    if job.spec.has_agent:
        if status.condition("AgentAbsent"):
            message = "ddpjob's agent runs what the pods run"
            status = with_condition(status, AGENT_RUNS, message, now=now)
        return status
    message = (
        "launcher none without command runs the image's own entry point, without ddpjob's agent: "
        "no progress, no first cause of a failure"
    )
    return with_condition(status, LAUNCHER_NONE, message, now=now)


def _refused(status: Status, observed: Observed, now: float) -> Status:
    """Return `status` with the error that stopped the last creation."""
    error = observed.create_error
    if isinstance(error, InvalidJob):
        return with_condition(status, INVALID, str(error), now=now)
    if isinstance(error, AlreadyExists):
        return with_condition(status, NAME_TAKEN, error.message, now=now)
    return with_condition(status, CREATE_REFUSED, str(error), now=now)
