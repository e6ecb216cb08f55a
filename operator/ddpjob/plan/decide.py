"""Decides what to do next for one job. Pure: the same job, observation and time, the same decision.

The status of a decision comes first. If it differs in more than counts, it is written under the
resourceVersion that the decision was made from, and nothing else is done; then the same question is
asked again. So whatever is done rests on a status that is stored, and an operator that dies between
any two writes goes on where it was.
"""

from dataclasses import replace

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.plan.budget import with_time_booked
from ddpjob.plan.cleanup import clean_up, delete_strays
from ddpjob.plan.columns import news, with_columns
from ddpjob.plan.failure import after_failure, restart_or_fail
from ddpjob.plan.finish import complete, seconds_left, suspend, time_is_up
from ddpjob.plan.idle import idle, rest_after_success
from ddpjob.plan.in_place import after_exits, is_waiting, with_ends, with_wait
from ddpjob.plan.model import Decision, Observed, PodRecord, requeue
from ddpjob.plan.own import BEGUN, Inputs, Pods, is_own, made_of, order_of, sort_pods, with_own
from ddpjob.plan.podrecord import seconds_to_slow
from ddpjob.plan.queue import eviction, with_workload
from ddpjob.plan.reasons import COMPLETED
from ddpjob.plan.restart import restart_beside_lost, return_to_nodes, with_own_root
from ddpjob.plan.running import (
    create_missing,
    not_started,
    seconds_to_start,
    with_counts,
    with_last_report,
    with_report,
)
from ddpjob.plan.sizes import go_on_with_fewer, grow, seconds_to_wait
from ddpjob.plan.spares import provide_spares
from ddpjob.plan.status import is_suspending
from ddpjob.plan.termination import final_report, final_result, termination_of
from ddpjob.plan.update import restart_outdated, update
from ddpjob.ranks import format_ranks, parse_ranks


def decide(job: DDPJob, observed: Observed, now: float) -> Decision:
    """Return the decision about `job`; `now` is Unix time.

    The decision is empty (same status, nothing to do) when everything is as it should be.
    """
    if job.spec.managed_by not in (None, names.MANAGER):
        return Decision(job.status)
    pods = sort_pods(job, job.status, observed.pods, observed.made)
    decision = _decide_by_state(job, pods, observed, now)
    if observed.queue:
        decision = with_workload(job, decision, observed.queue, observed.pods)
    status = decision.status
    if status.state == "Restarting" and made_of(status) != made_of(job.status):
        status = with_own_root(job, status, observed)
    decision = requeue(decision, observed.look_seconds)
    created = job.metadata.creation_timestamp
    status = with_time_booked(job.status, status, now, created=created)
    return replace(
        decision,
        status=with_columns(job.status, status, pods.current, now),
        events=(*decision.events, *news(job.status, status)),
        head=pods.head,
        order=order_of(job, pods, observed, ends=decision.end_round),
    )


def _decide_by_state(job: DDPJob, pods: Pods, observed: Observed, now: float) -> Decision:
    status = job.status
    # The job is being deleted, and the garbage collector takes what it owns.
    if job.metadata.deletion_timestamp:
        return Decision(status)
    # It has ended: only its pods are left to clean up.
    if status.state in api.FINISHED:
        every = [*pods.current, *pods.older, *pods.ahead, *pods.strays, *pods.spares]
        return clean_up(job, status, every, now)
    # There are pods of a later attempt, so another operator may have a newer view of the job.
    if not observed.confirmed and any(pod.uid not in observed.strays for pod in pods.ahead):
        return Decision(status, confirm=True)
    decision = _decide_active(job, pods, observed, now)
    cleaning = delete_strays(status, pods, observed, now)
    if decision.status.attempt != status.attempt:
        return decision  # the status is written first, and the strays' turn comes after it
    strays = (replace(deletion, stray=True) for deletion in cleaning.delete)
    decision = replace(decision, delete=(*strays, *decision.delete))
    return requeue(decision, cleaning.requeue_after)


def _decide_active(job: DDPJob, pods: Pods, observed: Observed, now: float) -> Decision:
    """Decide about a job that has not ended, by its own pods."""
    inputs, status = _inputs(job, pods, observed, now)
    succeeded = inputs.succeeded

    # All the work is done.
    if len(succeeded) == inputs.size or 0 in succeeded and job.spec.success_policy == "Rank0":
        return complete(inputs, status)
    # Somebody wants the job to stop for now.
    evicted = eviction(inputs, status)
    if evicted and not observed.confirmed:
        return Decision(job.status, confirm=True)
    if job.spec.suspend or is_suspending(status) or evicted:
        return suspend(inputs, status, evicted)
    # It has run for as long as it may.
    if seconds_left(inputs, status) <= 0:
        return time_is_up(inputs, status)
    # All ranks have ended, and their pods stay.
    if status.state == "Idle":
        kept = update(inputs, status) or idle(inputs, status)
        return requeue(kept, seconds_left(inputs, status))
    # A rank has failed, or its pod is lost.
    failing = after_failure(with_ends(inputs, status), status)
    if failing is not None and not is_waiting(failing):
        return failing
    # Somebody has edited what the ranks run.
    if updated := update(inputs, status) or restart_outdated(inputs, status):
        return updated
    if resting := rest_after_success(inputs, status):
        return resting
    # Ranks have failed, and their agents wait to be asked on.
    told = after_exits(inputs, status)
    if told is not None and not is_waiting(told):
        return told
    if beside := restart_beside_lost(inputs, status):
        return beside
    # It should have started by now.
    left = seconds_to_start(inputs, status, job.spec.startup_deadline_seconds)
    if left <= 0 and (found := not_started(inputs, status)):
        return restart_or_fail(inputs, status, found)
    # It goes on without those that are missing.
    longest = seconds_to_wait(inputs, status)
    if longest <= 0 and failing is told is None and (begun := go_on_with_fewer(inputs, status)):
        return begun
    # Nothing is wrong: count what runs, and create what is missing.
    status = with_counts(inputs, status)
    decision = create_missing(inputs, status)
    if decision.status.state in BEGUN and (returning := return_to_nodes(inputs, decision.status)):
        if returning.status.attempt != status.attempt:
            return returning
        decision = requeue(decision, returning.requeue_after)
    if decision.status.state in ("Starting", "Restarting"):
        decision = requeue(decision, seconds_to_slow(inputs.current, now))
    if failing is told is None:
        decision = grow(inputs, provide_spares(inputs, decision))
    for waiting in (failing, told):
        decision = with_wait(decision, waiting)
    if decision.status.state in BEGUN:
        decision = requeue(decision, seconds_left(inputs, decision.status))
    return requeue(decision, min((s for s in (left, longest) if s > 0), default=None))


def _inputs(job: DDPJob, pods: Pods, observed: Observed, now: float) -> tuple[Inputs, Status]:
    """Return the group, and its status with what the pods and their agents have reported."""
    current, older = pods.current, pods.older
    status = with_own(_begin(job), current, pods.spares)
    # Pods of the attempt before may still report their last step.
    before = (p for p in older if p.attempt == status.attempt - 1 and p.rank >= 0)
    former = [pod for pod in before if is_own(status, pod)]
    succeeded = parse_ranks(status.succeeded_ranks, job.spec.nnodes)
    since = status.program.round if status.program else 0
    succeeded |= {pod.rank for pod in current if _has_succeeded(job, pod, since)}
    if is_suspending(status):  # the attempt that is being left may still end well
        succeeded |= {pod.rank for pod in former if _has_succeeded(job, pod, 0)}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(succeeded)})
    # An answer of rank 0's agent is older than its final report. If its pod is gone, only the
    # status has the latter.
    polled = None if 0 in succeeded else observed.report
    status = with_last_report(status, final_report(former))
    status = with_report(status, final_report(current) or polled)
    status = status.model_copy(update={"result": final_result(current) or status.result})
    return Inputs(job, pods, frozenset(succeeded), observed, now), status


def _has_succeeded(job: DDPJob, pod: PodRecord, since: int) -> bool:
    """Whether this node has done its work, which is what ranks run from the round `since` on.

    A termination message of success counts even if the pod is evicted afterwards. Without an agent,
    a pod that is being deleted may exit with 0 only because its script obeys SIGTERM.
    """
    if not job.spec.has_agent:
        return pod.result == "succeeded" and not pod.deleting
    is_well = pod.result == "succeeded" or pod.result == "failed" and pod.exit_code == 0
    if not is_well or pod.result == "succeeded" and not since:
        return is_well  # so most are not read
    termination = termination_of(pod)
    if termination is not None and termination.round < since:
        return False
    if pod.result == "failed":
        return termination is not None and termination.reason == COMPLETED
    return pod.result == "succeeded"


def _begin(job: DDPJob) -> Status:
    """Return the status to start from; that of a new job is Pending."""
    update: dict[str, object] = {"observed_generation": job.metadata.generation}
    if job.status.state is None:
        update |= {"state": "Pending", "nodes": api.Nodes(desired=job.spec.nnodes)}
    return job.status.model_copy(update=update)
