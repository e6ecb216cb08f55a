"""How an attempt's pods come to be and run: what is created when, counts and reports. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddpjob import api
from ddpjob.api import Attempt, DDPJob, Progress, Status
from ddpjob.errors import AlreadyExists, InvalidJob
from ddpjob.plan.budget import reported_step, with_highest_step, with_lost_time, with_refill
from ddpjob.plan.cleanup import UNBEGUN_SECONDS, end_older, name_taken
from ddpjob.plan.model import Decision, Event, Observed, PodRecord, Report, requeue
from ddpjob.plan.own import Inputs, awaits_pods, name_of
from ddpjob.plan.podrecord import first_stuck, slowest
from ddpjob.plan.queue import admit
from ddpjob.plan.reasons import (
    ALL_NODES_RUNNING,
    CREATE_REFUSED,
    INVALID,
    NAME_TAKEN,
    NO_STEP,
    NOT_STARTED,
    NOT_WATCHED,
    PROGRESS,
    RESUMED,
    SPEC_CHANGED,
    STARTING,
    because,
)
from ddpjob.plan.restart import restart, silent_nodes, with_own_root
from ddpjob.plan.status import (
    CREATING,
    count_nodes,
    with_accepted,
    with_condition,
    with_history,
    with_progress,
)
from ddpjob.plan.termination import termination_of, with_rank
from ddpjob.plan.update import is_edited, with_program
from ddpjob.times import seconds_since, timestamp


def with_counts(inputs: Inputs, status: Status) -> Status:
    """Return `status` with counts, and Running once every node runs or has ended well."""
    job, now = inputs.job, inputs.now
    nodes = count_nodes(inputs.size, inputs.current, inputs.succeeded)
    if job.spec.spare_pods or inputs.size < job.spec.nnodes:
        ready = sum(pod.running and not pod.deleting for pod in inputs.pods.spares)
        nodes = nodes.model_copy(update={"spares": min(ready, api.MAX_SPARES)})
    status = status.model_copy(update={"nodes": nodes})
    full = nodes.running + nodes.succeeded == nodes.desired
    if full and status.state != "Running" and _has_begun(inputs, status):
        own = [table for table in status.pods if table.attempt == status.attempt]
        status = status.model_copy(update={"state": "Running", "pods": own})
        message = f"{nodes.desired} of {nodes.desired} nodes run"
        if nodes.desired < job.spec.nnodes:
            message += f"; the job wants {job.spec.nnodes}"
        status = with_condition(status, ALL_NODES_RUNNING, message, now=now)
    elif status.state in ("Starting", "Restarting") and awaits_pods(status):
        status = _waiting(status, inputs.current, now)
    return _watched(job, status, now)


def _has_begun(inputs: Inputs, status: Status) -> bool:
    """Whether the ranks of the round have been started, if all pods run.

    The first ranks of a pod start with it. Those of a later round start when the agents have
    agreed, which rank 0's agent reports. If a pod has ended well with this round, its agent may be
    gone, and they have started too.
    """
    seen, here = inputs.observed.round_status, (status.attempt, status.round)
    if status.round == 0 or seen and seen.running and (seen.attempt, seen.round) == here:
        return True
    ended = (termination_of(pod) for pod in inputs.current if pod.result == "succeeded")
    return any(termination and termination.round == status.round for termination in ended)


def _waiting(status: Status, current: Sequence[PodRecord], now: float) -> Status:
    """Return `status` with the reason that keeps a pod from running, as long as there is one."""
    if stuck := first_stuck(current):
        message = f"pod {stuck.name}: {stuck.message or stuck.reason}"
        return with_condition(status, because(STARTING, stuck.reason), message, now=now)
    if slow := slowest(current, now):
        message = f"{slow.message or slow.reason}, pod {slow.name}"
        return with_condition(status, because(STARTING, slow.reason), message, now=now)
    old, last = status.condition("Running"), status.history[-1:]
    ours = {STARTING.name, *(attempt.reason for attempt in last)}
    if not current or old is None or old.reason in ours:
        return status
    return with_condition(status, STARTING, CREATING, now=now)


def _watched(job: DDPJob, status: Status, now: float) -> Status:
    """Return `status` with the condition Stalled. The agents find the hangs."""
    limit = job.spec.hang_timeout_seconds
    if not limit and status.condition("Stalled"):
        message = "hangTimeoutSeconds is 0"
        return with_condition(status, NOT_WATCHED, message, now=now)
    if not limit or status.state != "Running":
        return status
    if status.current_progress is None:
        message = "no step has been seen in this attempt; hangs are judged from the first one on"
        return with_condition(status, NO_STEP, message, now=now)
    message = f"steps are made; without one for {limit} s the attempt ends"
    return with_condition(status, PROGRESS, message, now=now)


def with_report(status: Status, report: Report | None) -> Status:
    """Return `status` with rank 0's report; a new highest step gives the budget back."""
    is_first, before = status.current_progress is None, reported_step(status)
    status = with_progress(status, report)
    if is_first:
        status = with_lost_time(status)
    budget, step = status.budget, reported_step(status)
    if before is not None and step is not None and step < before:  # the script went back
        budget = with_highest_step(budget, before)
    return status.model_copy(update={"budget": with_refill(budget, step)})


def with_last_report(status: Status, report: Report | None) -> Status:
    """Return `status` with the step at which rank 0 left the attempt before this one.

    Rank 0 reports it when it ends. By then the next attempt has begun with an older step.
    """
    if report is None or report.source == "counted" or report.attempt != status.attempt - 1:
        return status
    update: dict[str, Any] = {"budget": with_highest_step(status.budget, report.step)}
    ended = status.history[-1:]
    if ended and _is_of(report, ended[0]) and (ended[0].step or -1) < report.step:
        last = ended[0].model_copy(update={"step": report.step})
        update["history"] = [*status.history[:-1], last]
    progress = None if status.current_progress else status.progress
    if progress and progress.source != "counted" and _is_of(report, progress):
        update["progress"] = progress.model_copy(update={"step": max(progress.step, report.step)})
    return status.model_copy(update=update)


def _is_of(report: Report, part: Attempt | Progress) -> bool:
    """Whether this part of the status is about the round that the report is of."""
    return part.attempt in (None, report.attempt) and part.round == report.round


def seconds_to_start(inputs: Inputs, status: Status, limit: int | None) -> float:
    """Return the seconds until a start has taken `limit` seconds, or infinity if nothing starts.

    The time counts from the last pod's creation, and from the first refusal of one. That of a
    gang counts from its first pod that has a node: before, it keeps nothing from others, and made
    anew it would lose its place.
    """
    observed, current, now = inputs.observed, inputs.current, inputs.now
    starting = status.state in ("Starting", "Restarting") and awaits_pods(status)
    starting = starting and not any(pod.live for pod in inputs.pods.older)
    if limit is None or not starting:
        return math.inf
    created = [pod.created_at for pod in current if pod.created_at]
    if not current and observed.create_error is None:
        return math.inf  # nothing has been tried yet: old pods, a pause, no operator
    begun = [status.goodput.since, status.budget.next_restart_time, *sorted(created)[-1:]]
    if any(pod.gang for pod in current):
        placed = [pod.scheduled_at or "" for pod in current if pod.node]
        if not placed and observed.create_error is None:
            return math.inf
        begun += sorted(placed)[:1]
    waited = [seconds_since(time, now) for time in begun if time]
    if observed.create_error is not None:
        waited.append(observed.refused_seconds)
    return limit - min(waited, default=0.0)


def not_started(inputs: Inputs, status: Status) -> api.Failure | None:
    """Return the failure that a part of the group could not be started, if there is one.

    A pod that pulls its image, or has it, counts as started where its kubelet shows that: before
    Kubernetes 1.36 a pod without its first image looks like one without volumes or network.
    """
    job, observed, current = inputs.job, inputs.observed, inputs.current
    missing = set(range(inputs.size)) - {pod.rank for pod in current} - inputs.succeeded
    early = [pod for pod in current if pod.live and (not pod.node or pod.without_sandbox)]
    pod = first_stuck(current) or min(early, key=lambda pod: pod.rank, default=None)
    if pod is None and not missing:
        return None
    rank = pod.rank if pod else min(missing)
    name = pod.name if pod else name_of(job, status, rank)
    words = (
        pod.message or pod.reason if pod else str(observed.create_error or "it was never created")
    )
    if pod and pod.without_sandbox:
        words = "its volumes or its network are not there, or, before Kubernetes 1.36, its image"
        words += "; kubectl describe pod says which"
    found = api.Failure(
        attempt=status.attempt,
        pod=name,
        node=pod.node or None if pod else None,
        reason=NOT_STARTED,
        message=f"not started within {job.spec.startup_deadline_seconds} s: {words}"[:4096],
        time=timestamp(inputs.now),
    )
    return with_rank(found, rank, job.spec.processes_per_node)


def create_missing(inputs: Inputs, status: Status) -> Decision:
    """Return the next decision on the way to the missing pods.

    Pods of older attempts are deleted and waited for, then the pause; then the job is prepared, is
    Starting, and its pods are created. What replaces a pod need not wait for that one's end.
    """
    job, pods, observed, now = inputs.job, inputs.pods, inputs.observed, inputs.now
    current, older = pods.current, pods.older
    silent = silent_nodes(status, now)
    decision = end_older(status, older, now, silent)
    present = {pod.rank for pod in current} | inputs.succeeded
    missing = tuple(rank for rank in range(inputs.size) if rank not in present)
    if not missing:
        if observed.edit_error is not None:
            words = f"{observed.edit_error}; the pods were made before this edit"
            status = with_condition(status, INVALID, words, now=now)
            return replace(decision, status=status)
        return replace(decision, status=with_accepted(job, status, now))
    if any(pod.live and pod.attempt != status.attempt for pod in older):
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
    decision, may_create = admit(inputs, replace(decision, status=status))
    if not may_create:
        return decision
    status = decision.status
    if not observed.children_ready:
        return replace(decision, prepare=True)
    if any(pod.spec_hash != observed.spec_hash for pod in current):
        message = "the job was edited while its pods were being created"
        event = Event("Restarting", message)
        status = with_history(status, SPEC_CHANGED, now)
        return replace(restart(inputs, status, SPEC_CHANGED, message), events=(event,))
    if is_edited(status, observed.program) and not observed.confirmed:
        return Decision(job.status, confirm=True)  # there may be pods of what was there before
    # Another operator may have begun this attempt. Then this one's root is written first.
    known = with_program(with_own_root(job, status, observed), observed.program)
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
    status = with_accepted(job, status, now)
    if status.condition("Suspended"):
        message = "Kueue has admitted it" if status.admission else "spec.suspend is false"
        status = with_condition(status, RESUMED, message, now=now)
    status = with_condition(status, STARTING, CREATING, now=now)
    return status


def _refused(status: Status, observed: Observed, now: float) -> Status:
    """Return `status` with the error that stopped the last creation."""
    error = observed.create_error
    if isinstance(error, InvalidJob):
        return with_condition(status, INVALID, str(error), now=now)
    if isinstance(error, AlreadyExists):
        return with_condition(status, NAME_TAKEN, error.message, now=now)
    return with_condition(status, CREATE_REFUSED, str(error), now=now)
