"""Decides what to do next for one job. Pure: the same job, observation and time give the same plan.

A plan is one step. Its status comes first: where that differs in more than counts, it is written,
under the resource version that the decision was made from, before anything else happens; then the
same question is asked again. So whatever is done rests on a status that is stored, and a controller
that dies between any two writes goes on where it was.
"""

import math
from dataclasses import replace

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.plan.cleanup import clean_up
from ddpjob.plan.decision import Note, Plan, look_again
from ddpjob.plan.failure import after_failure, restart_or_fail
from ddpjob.plan.finish import complete, seconds_left, time_is_up
from ddpjob.plan.goodput import booked
from ddpjob.plan.group import Group
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.own import BEGUN, Pods, is_own, sort_pods, with_own
from ddpjob.plan.reports import with_last_word, with_report
from ddpjob.plan.restart import with_own_root
from ddpjob.plan.running import with_counts
from ddpjob.plan.startup import create_missing, not_started, seconds_to_start
from ddpjob.plan.strays import delete_strays
from ddpjob.plan.suspend import is_suspending, suspend
from ddpjob.plan.termination import MAX_MESSAGE, final_report, word_of
from ddpjob.ranks import format_ranks, parse_ranks

COMPLETED = "Completed"  # as the agent calls it
_REFUSALS = ("Invalid", "NameTaken", "CreateRefused")


def plan(job: DDPJob, observed: Observed, now: float) -> Plan:
    """The next step for `job`.

    Empty (same status, nothing to do) when everything is as it should be.
    """
    if job.spec.managed_by not in (None, names.MANAGER):
        return Plan(job.status)
    pods = sort_pods(job, job.status, observed.pods, observed.made)
    step = _next_step(job, pods, observed, now)
    if step.status.state == "Restarting" and step.status.attempt != job.status.attempt:
        step = replace(step, status=with_own_root(job, step.status, observed))
    notes = _loss_note(job.status, step.status), _refusal_note(job.status, step.status)
    step = replace(step, notes=(*step.notes, *(note for note in notes if note)))
    created = job.metadata.creation_timestamp
    status = booked(job.status, step.status, now, created=created)
    return replace(step, status=status, head=pods.head)


def _loss_note(before: Status, after: Status) -> Note | None:
    """What is to be said once the loss is no number any more.

    The training goes on: with a scaled loss it may be so for one step.
    """
    losses = (status.progress.loss if status.progress else None for status in (before, after))
    was, loss = (None if text is None else float(text) for text in losses)
    if loss is None or math.isfinite(loss) or was is not None and not math.isfinite(was):
        return None
    return Note("LossNotFinite", f"rank 0 reports a loss of {loss}", warning=True)


def _refusal_note(before: Status, after: Status) -> Note | None:
    """What is to be said once nothing can be created: not again in other words of the same."""
    for kind in ("Accepted", "Running"):
        old, new = before.condition(kind), after.condition(kind)
        if new and new.reason in _REFUSALS and (old is None or old.reason != new.reason):
            return Note(new.reason, new.message[:MAX_MESSAGE], warning=True)
    return None


def _next_step(job: DDPJob, pods: Pods, observed: Observed, now: float) -> Plan:
    status = job.status
    if job.metadata.deletion_timestamp:
        return Plan(status)  # being collected
    if status.state in api.FINISHED:
        every = [*pods.current, *pods.older, *pods.ahead, *pods.strays]
        return clean_up(job, status, every, now)
    if not observed.looked and any(pod.uid not in observed.strays for pod in pods.ahead):
        return Plan(status, look=True)  # our view of the job may be older than theirs
    step, cleaning = _go_on(job, pods, observed, now), delete_strays(status, pods, observed, now)
    if step.status.attempt != status.attempt:
        return step  # written first; they come after
    strays = (replace(deletion, stray=True) for deletion in cleaning.delete)
    return look_again(replace(step, delete=(*strays, *step.delete)), cleaning.look_again)


def _go_on(job: DDPJob, pods: Pods, observed: Observed, now: float) -> Plan:
    """The next step, of a job that has not ended, by its own pods."""
    current, older = pods.current, pods.older
    status = with_own(_begin(job), current)
    # Those of the attempt before may still have a last word.
    former = [p for p in older if p.attempt == status.attempt - 1 and is_own(status, p)]
    succeeded = parse_ranks(status.succeeded_ranks, job.spec.nnodes)
    succeeded |= {pod.rank for pod in current if _has_succeeded(job, pod)}
    if is_suspending(status):  # the attempt that is being left may still end well
        succeeded |= {pod.rank for pod in former if _has_succeeded(job, pod)}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(succeeded)})
    # What was asked of rank 0 is older than what it said at its end, which may be in status alone.
    asked = None if 0 in succeeded else observed.report
    status = with_last_word(status, final_report(former))
    status = with_report(status, final_report(current) or asked)

    group = Group(job, pods, frozenset(succeeded), observed, now)
    # All the work is done.
    if len(succeeded) == job.spec.nnodes or 0 in succeeded and job.spec.success_policy == "Rank0":
        return complete(group, status)
    # Somebody wants the job to stop for now.
    if job.spec.suspend or is_suspending(status):
        return suspend(group, status)
    # It has run for as long as it may.
    if seconds_left(group, status) <= 0:
        return time_is_up(group, status)
    # A rank has failed, or its pod is lost.
    trouble = after_failure(group, status)
    if trouble is not None and not trouble.noise:
        return trouble
    # It should have started by now.
    left = seconds_to_start(group, status)
    if left <= 0 and (found := not_started(group, status)):
        return restart_or_fail(group, status, found)
    # Nothing is wrong: count what runs, and create what is missing.
    status = with_counts(group, status)
    step = create_missing(group, status)
    if trouble is not None:
        step = look_again(replace(step, noise=True), trouble.look_again)
    if step.status.state in BEGUN:
        step = look_again(step, seconds_left(group, step.status))
    return look_again(step, left if left > 0 else None)


def _has_succeeded(job: DDPJob, pod: PodRecord) -> bool:
    """Whether this node has done its work.

    An agent that says so is right, also in a pod that is evicted then. Without one, exit code 0 of
    a pod that is being deleted may be how the script obeys SIGTERM.
    """
    if not job.spec.has_agent:
        return pod.result == "succeeded" and not pod.deleting
    if pod.result == "failed" and pod.exit_code == 0:
        word = word_of(pod)
        return word is not None and word.reason == COMPLETED
    return pod.result == "succeeded"


def _begin(job: DDPJob) -> Status:
    """The status to start from; a new job's says Pending."""
    update: dict[str, object] = {"observed_generation": job.metadata.generation}
    if job.status.state is None:
        update |= {"state": "Pending", "nodes": api.Nodes(desired=job.spec.nnodes)}
    return job.status.model_copy(update=update)
