"""Decides what to do next for one job. Pure: the same job, observation and time give the same plan.

A plan is one step. Its status comes first: where that differs in more than counts, it is written,
under the resource version that the decision was made from, before anything else happens; then the
same question is asked again. So whatever is done rests on a status that is stored, and a controller
that dies between any two writes goes on where it was.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ddpjob import api, keys
from ddpjob.api import DDPJob, Status
from ddpjob.errors import AlreadyExists, InvalidJob
from ddpjob.plan.failurepolicy import (
    LAUNCH_FAILED,
    SAME_STEP_FAILURES,
    judge,
    reached,
    regained,
    reported_step,
    spend,
)
from ddpjob.plan.goodput import active_seconds, booked, with_lost_time
from ddpjob.plan.observed import DEADLINE, NOT_STARTED, SAVED, Observed, PodRecord, Report
from ddpjob.plan.own import BEGUN, Pods, is_own, known_ranks, sort_pods, with_own, with_root
from ddpjob.plan.proof import proofs
from ddpjob.plan.removal import SURVIVOR_GRACE, clean_up, delete, grace_of, remains
from ddpjob.plan.status import (
    count_nodes,
    duration,
    first_stuck,
    waiting_reason,
    with_condition,
    with_history,
    with_progress,
    with_summary,
)
from ddpjob.plan.step import Note, Plan, look_again
from ddpjob.plan.summary import (
    HANG,
    MAX_MESSAGE,
    by_cause,
    failure,
    final_report,
    first_cause,
    is_noise,
    late_failure,
    noise_failure,
    word_of,
)
from ddpjob.ranks import format_ranks, parse_ranks
from ddpjob.times import seconds_since, stamp

COMPLETED = "Completed"  # as the agent calls it
RENDEZVOUS = "Rendezvous"  # likewise
CREATING = "pods are being created"
SPARED_SECONDS = 60.0  # until a stray whose deletion was refused is deleted again
HOPELESS = (
    "a restart would end the same way; where it would not, a rule of failurePolicy with "
    "onReasons: [{reason}] and action: Restart has it tried"
)
_LOSSES = {
    "Evicted": ": evicted",
    SAVED: ": preempted by another pod",
    "NodeLost": ": its node is lost",
    "NodeRefused": ": its node refused it",
}
_REFUSALS = ("Invalid", "NameTaken", "CreateRefused")
UNHEARD_SECONDS = 60.0  # beyond any delay of a watch, and of clocks
STRAY_SECONDS = 5.0  # as long as another operator may need to be heard of
MAX_AVOIDED_NODES = 32  # as many as status may hold
MAX_SEARCHED = 32  # failures whose messages are searched in one step: a second's work at worst
MAX_NOTES = 4  # Events in one step
MAX_WORDS = 800  # characters of a rank's message that stand before those of others
NOISE_SECONDS = 10.0  # while only peers' noise is seen; a busy node is slow to tell the cause


_NodeFailure = tuple[int, api.Failure]
"""Of the pod of which node rank; the failure may name another rank, of a process in it."""


def plan(job: DDPJob, observed: Observed, now: float) -> Plan:
    """The next step for `job`.

    Empty (same status, nothing to do) when everything is as it should be.
    """
    if job.spec.managed_by not in (None, keys.MANAGER):
        return Plan(job.status)
    pods = sort_pods(job, job.status, observed.pods, observed.made)
    step = _next_step(job, pods, observed, now)
    if step.status.state == "Restarting" and step.status.attempt != job.status.attempt:
        step = replace(step, status=_with_root(job, step.status, observed))
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
    step, cleaning = _go_on(job, pods, observed, now), _delete_strays(status, pods, observed, now)
    if step.status.attempt != status.attempt:
        return step  # written first; they come after
    strays = (replace(deletion, stray=True) for deletion in cleaning.delete)
    return look_again(replace(step, delete=(*strays, *step.delete)), cleaning.look_again)


def _delete_strays(status: Status, pods: Pods, observed: Observed, now: float) -> Plan:
    """Delete what is not the job's own, and would be in its way.

    Pods of attempts that it has not begun are somebody else's, or its status has been put back,
    from a backup say. But none that is new, for another operator may just have made it.
    """
    step, ripe = Plan(status), list[PodRecord]()
    for pods_of, seconds in ((pods.ahead, UNHEARD_SECONDS), (pods.strays, STRAY_SECONDS)):
        for pod in pods_of:
            wait = seconds - seconds_since(pod.created_at, now) if pod.created_at else 0.0
            if wait > 0 and not pod.deleting:
                step = look_again(step, wait)
            elif pod.uid in observed.spared:
                step = look_again(step, SPARED_SECONDS)
            else:
                ripe.append(pod)
    return delete(step, ripe, SURVIVOR_GRACE, now)


def _go_on(job: DDPJob, pods: Pods, observed: Observed, now: float) -> Plan:
    """The next step, of a job that has not ended, by its own pods."""
    current, older = pods.current, pods.older
    status = with_own(_begin(job), current)
    # Those of the attempt before may still have a last word.
    former = [p for p in older if p.attempt == status.attempt - 1 and is_own(status, p)]
    succeeded = parse_ranks(status.succeeded_ranks, job.spec.nnodes)
    succeeded |= {pod.rank for pod in current if _has_succeeded(job, pod)}
    if _is_suspending(status):  # the attempt that is being left may still end well
        succeeded |= {pod.rank for pod in former if _has_succeeded(job, pod)}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(succeeded)})
    # What was asked of rank 0 is older than what it said at its end, which may be in status alone.
    asked = None if 0 in succeeded else observed.report
    status = _with_last_word(status, final_report(former))
    status = _with_report(status, final_report(current) or asked)

    if len(succeeded) == job.spec.nnodes or 0 in succeeded and job.spec.success_policy == "Rank0":
        return _complete(job, status, current, succeeded, now)
    if job.spec.suspend or _is_suspending(status):
        return _suspend(job, status, pods, observed, now)
    if _seconds_left(job, status, now) <= 0:
        return _time_is_up(job, status, current, succeeded, now)
    trouble = _failure(job, status, current, succeeded, observed, now)
    if trouble is not None and not trouble.noise:
        return trouble
    left = _seconds_to_start(job, status, current, older, observed, now)
    if left <= 0 and (found := _not_started(job, status, current, succeeded, observed, now)):
        return _decide(job, status, found, current, succeeded, now)
    status = _counted(job, status, current, succeeded, now)
    step = _missing(job, status, pods, succeeded, observed, now)
    if trouble is not None:
        step = look_again(replace(step, noise=True), trouble.look_again)
    if step.status.state in BEGUN:
        step = look_again(step, _seconds_left(job, step.status, now))
    return look_again(step, left if left > 0 else None)


def _with_root(job: DDPJob, status: Status, observed: Observed) -> Status:
    """`status`, with what proves the pods that this operator makes of its attempt."""
    own = proofs(observed.key, job.uid, status.attempt, job.spec.nnodes)
    return with_root(status, own.root)


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


def _with_report(status: Status, report: Report | None) -> Status:
    """`status` with what rank 0 says, and what follows from how far it got."""
    first = status.progress.first_step if status.progress else None
    before = reported_step(status)
    status = with_progress(status, report)
    if first is None:
        status = with_lost_time(status)
    budget, step = status.budget, reported_step(status)
    if before is not None and step is not None and step < before:  # the script went back
        budget = reached(budget, before)
    return status.model_copy(update={"budget": regained(budget, step)})


def _with_last_word(status: Status, report: Report | None) -> Status:
    """`status` with the step at which rank 0 left the attempt before this one.

    It tells when it ends, which is after the attempt was given up: what was known then is older.
    """
    if report is None or report.source != "file" or report.attempt != status.attempt - 1:
        return status
    update: dict[str, Any] = {"budget": reached(status.budget, report.step)}
    said = status.history[-1:]
    if said and said[0].attempt == report.attempt and (said[0].step or -1) < report.step:
        last = said[0].model_copy(update={"step": report.step})
        update["history"] = [*status.history[:-1], last]
    progress = status.progress
    if progress and progress.first_step is None and progress.source == "file":  # that attempt's
        update["progress"] = progress.model_copy(update={"step": max(progress.step, report.step)})
    return status.model_copy(update=update)


def _seconds_left(job: DDPJob, status: Status, now: float) -> float:
    """Until `activeDeadlineSeconds`; infinite without one."""
    limit = job.spec.active_deadline_seconds
    return math.inf if limit is None else limit - active_seconds(status, now)


def _seconds_to_start(
    job: DDPJob,
    status: Status,
    current: Sequence[PodRecord],
    older: Sequence[PodRecord],
    observed: Observed,
    now: float,
) -> float:
    """Until `startupDeadlineSeconds`; infinite without one, and where nothing is to start.

    It counts from the last pod's creation and from the first refusal of one.
    """
    limit = job.spec.startup_deadline_seconds
    starting = status.state in ("Starting", "Restarting") and not any(pod.live for pod in older)
    if limit is None or not starting:
        return math.inf
    created = [pod.created_at for pod in current if pod.created_at]
    if not current and observed.trouble is None:
        return math.inf  # nothing has been tried, because of old pods, a pause, or our own absence
    begun = [status.goodput.since, status.budget.next_restart_time, *sorted(created)[-1:]]
    waited = [seconds_since(time, now) for time in begun if time]
    if observed.trouble is not None:
        waited.append(observed.refused_seconds)
    return limit - min(waited, default=0.0)


def _not_started(
    job: DDPJob,
    status: Status,
    current: Sequence[PodRecord],
    succeeded: set[int],
    observed: Observed,
    now: float,
) -> api.Failure | None:
    """The failure that a part of the group could not be started, if that is so.

    What is still pulling its image, or has it, is no such part.
    """
    missing = set(range(job.spec.nnodes)) - {pod.rank for pod in current} - succeeded
    bare = [pod for pod in current if pod.live and (not pod.node or pod.bare)]
    pod = first_stuck(current) or min(bare, key=lambda pod: pod.rank, default=None)
    if pod is None and not missing:
        return None
    rank = pod.rank if pod else min(missing)
    name = pod.name if pod else keys.pod_name(job.name, status.attempt, rank)
    words = pod.message or pod.reason if pod else str(observed.trouble or "it was never created")
    if pod and not pod.node and not words:
        words = "no scheduler has said a word about it"
    if pod and pod.bare:
        words = "its volumes or its network are not there; kubectl describe pod says why"
    return api.Failure(
        attempt=status.attempt,
        rank=rank,
        pod=name,
        node=pod.node or None if pod else None,
        reason=NOT_STARTED,
        message=f"not started within {job.spec.startup_deadline_seconds} s: {words}"[:4096],
        time=stamp(now),
    )


def _time_is_up(
    job: DDPJob, status: Status, current: Sequence[PodRecord], succeeded: set[int], now: float
) -> Plan:
    message = f"active for longer than activeDeadlineSeconds, {job.spec.active_deadline_seconds}"
    status = with_history(status, DEADLINE, now)
    return _fail(status, DEADLINE, message, message, current, succeeded, now)


def _begin(job: DDPJob) -> Status:
    """The status to start from; a new job's says Pending."""
    update: dict[str, object] = {"observed_generation": job.metadata.generation}
    if job.status.state is None:
        update |= {"state": "Pending", "nodes": api.Nodes(desired=job.spec.nnodes)}
    return job.status.model_copy(update=update)


def _complete(
    job: DDPJob, status: Status, current: Sequence[PodRecord], succeeded: set[int], now: float
) -> Plan:
    reason, message = "AllRanksSucceeded", "all ranks have ended with exit code 0"
    if len(succeeded) < job.spec.nnodes:
        reason, message = "Rank0Succeeded", "rank 0 has ended with exit code 0"
    elif any(rule.action == "Ignore" for rule in job.spec.failure_policy.rules):
        message += ", or are ignored"
    status = _finished(
        with_history(status, "Succeeded", now), "Succeeded", message, current, succeeded, now
    )
    status = with_condition(status, "Complete", True, reason, message, now=now)
    note = Note("Succeeded", message)
    return Plan(with_summary(status), drop_agent=True, notes=(note,))


def _finished(
    status: Status,
    state: api.State,
    message: str,
    current: Sequence[PodRecord],
    succeeded: set[int],
    now: float,
) -> Status:
    """What both ends have in common."""
    status = status.model_copy(
        update={
            "state": state,
            "completion_time": stamp(now),
            "nodes": _last_counts(status.nodes.desired, current, succeeded),
            "pods": [],
        }
    )
    return with_condition(status, "Running", False, "Finished", message, now=now)


def _last_counts(desired: int, current: Sequence[PodRecord], succeeded: set[int]) -> api.Nodes:
    """Counts for ever: what still runs or waits ends unwatched."""
    nodes = count_nodes(desired, current, succeeded)
    return nodes.model_copy(update={"pending": 0, "running": 0})


def _is_suspending(status: Status) -> bool:
    """Whether the job is leaving its attempt, which is brought to its end in any case."""
    leaving = status.condition("Suspended")
    return leaving is not None and leaving.reason == "Suspending"


def _suspend(job: DDPJob, status: Status, pods: Pods, observed: Observed, now: float) -> Plan:
    """Leave the attempt, then end its pods with their full grace, then say Suspended."""
    started = status.state not in ("Pending", "Suspended")
    if started and not _is_suspending(status):
        ranks = {"succeeded_ranks": status.succeeded_ranks}
        status = _next_attempt(job, with_history(status, "Suspended", now))
        status = status.model_copy(update=ranks)  # while the rest ends
        message = "spec.suspend is true; ranks have their grace period to save"
        status = with_condition(status, "Suspended", False, "Suspending", message, now=now)
        return Plan(with_summary(status), notes=(Note("Suspending", message),))
    # Also a pod that came after the job was suspended: its creation was under way. And those that
    # saved and ended by themselves, since others had their SIGTERM first.
    if left := remains(status, [*pods.current, *pods.older]):
        return delete(Plan(with_summary(status)), left, None, now)
    if started and not observed.looked:
        return Plan(job.status, look=True)
    budget = status.budget.model_copy(update={"next_restart_time": None})  # resumed at once
    update = {
        "state": "Suspended",
        "succeeded_ranks": "",
        "budget": budget,
        "avoided_nodes": [],  # they may be well again
    }
    status = status.model_copy(update=update)
    message = "spec.suspend is true" if job.spec.suspend else "spec.suspend was true"
    status = with_condition(status, "Suspended", True, "Suspended", message, now=now)
    status = with_condition(status, "Running", False, "Suspended", message, now=now)
    return Plan(with_summary(status))


def _failure(
    job: DDPJob,
    status: Status,
    current: Sequence[PodRecord],
    succeeded: set[int],
    observed: Observed,
    now: float,
) -> Plan | None:
    """What follows from failed and lost ranks.

    A restart, the end, or a short wait for the cause.
    """
    rest = [pod for pod in current if pod.rank not in succeeded]
    lost = [pod for pod in rest if pod.deleting]
    failed = [pod for pod in rest if pod.result == "failed" and not pod.deleting]
    gone = _gone(job, rest, succeeded)
    if ignored := _ignored(job, _in_order(failed)):
        return _ignore(status, ignored, succeeded)
    # Beside a pod that Kubernetes ends, one without an agent's word has failed because of it.
    disrupted = any(pod.disruption for pod in lost)
    own = [pod for pod in failed if not is_noise(pod) and not (disrupted and word_of(pod) is None)]
    if own:
        return _decide(job, status, failure(first_cause(own)), current, succeeded, now)
    if gone and not lost and not observed.looked:
        return Plan(job.status, look=True)
    if lost or gone:
        losses = _losses(job, status, lost, gone, now)
        if ignored := _ignored(job, losses):
            return _ignore(status, ignored, succeeded)
        return _decide(job, status, losses[0][1], current, succeeded, now)
    if not failed:
        return None
    waited = observed.noise_seconds
    if waited < NOISE_SECONDS and any(pod.live for pod in rest):
        return Plan(status, noise=True, look_again=NOISE_SECONDS - waited)
    late = late_failure(failed, [pod for pod in rest if pod.live])
    found = late or _with_suspects(noise_failure(failed), rest, succeeded)
    return _decide(job, status, found, current, succeeded, now)


def _with_suspects(
    found: api.Failure, rest: Sequence[PodRecord], succeeded: set[int]
) -> api.Failure:
    """`found`, of a rank that only tells of others, with those who may be meant.

    A rank that left its loop early, or is late for a collective, does not fail itself.
    """
    live = {pod.rank for pod in rest if pod.live}
    words = [
        f"node rank {format_ranks(ranks)} {what}"
        for ranks, what in ((succeeded, "has ended well"), (live, "has not failed"))
        if ranks
    ]
    message = "; ".join([found.message[:MAX_WORDS], *words])[:MAX_MESSAGE]
    return found.model_copy(update={"message": message}) if words else found


def _in_order(failed: Sequence[PodRecord]) -> Iterator[_NodeFailure]:
    """Their failures, the first cause first."""
    for pod in by_cause(failed):
        yield pod.rank, failure(pod)


def _ignored(job: DDPJob, failures: Iterable[_NodeFailure]) -> list[_NodeFailure]:
    """Those of them that a rule ignores; `failures`: the first cause first.

    To search messages takes time, and thousands may fail at once. So the first of them are judged:
    if one is ignored, the others come next; if none is, it is the first that the group restarts of.
    """
    policy = job.spec.failure_policy
    if all(rule.action != "Ignore" for rule in policy.rules):
        return []
    if policy.message_patterns():
        failures = islice(failures, MAX_SEARCHED)
    return [pair for pair in failures if judge(policy, pair[1]).action == "Ignore"]


def _ignore(status: Status, ignored: Sequence[_NodeFailure], succeeded: set[int]) -> Plan:
    """These nodes count as finished."""
    finished = succeeded | {rank for rank, _ in ignored}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(finished)})
    words = (f"{_what(found)}; ignored by a rule of failurePolicy" for _, found in ignored)
    notes = (Note("Ignored", text, warning=True) for text in islice(words, MAX_NOTES))
    return Plan(status, notes=tuple(notes))


def _created(status: Status) -> bool:
    """Whether all pods of the attempt have existed: a missing one is gone then, not yet to come."""
    nodes = status.nodes
    counted = nodes.pending + nodes.running + nodes.succeeded + nodes.failed
    return counted == nodes.desired > 0


def _gone(job: DDPJob, rest: Sequence[PodRecord], succeeded: set[int]) -> list[int]:
    """Node ranks whose pods have existed, and do not any more."""
    nodes = range(job.status.nodes.desired)
    existed = nodes if _created(job.status) else known_ranks(job.status) & {*nodes}
    present = {pod.rank for pod in rest} | succeeded
    return [rank for rank in sorted(existed) if rank not in present]


def _decide(
    job: DDPJob,
    status: Status,
    found: api.Failure,
    current: Sequence[PodRecord],
    succeeded: set[int],
    now: float,
) -> Plan:
    """The group has failed, `found` is why: it starts again, or that was the end."""
    policy = job.spec.failure_policy
    # A script that once was there is missing on some node, not in the job.
    verdict = judge(policy, found, has_trained=status.progress is not None)
    if found.reason == RENDEZVOUS and verdict.rule is None and status.state != "Running":
        verdict = replace(verdict, counts=False)  # it waited for nodes that were never there
    budget, pause = spend(
        status.budget,
        reported_step(status),
        counts=verdict.counts,
        ran_seconds=_ran_seconds(status, now),
        backoff=policy.backoff_seconds,
    )
    if found.reason == NOT_STARTED:  # others are to have what it held, so not at once
        pause = max(pause, policy.backoff_seconds.first, 1.0)
    what, allowed = _what(found), policy.max_restarts
    ended = with_history(status, found.reason, now, found=found, charged=verdict.counts)
    status = ended.model_copy(update={"failure": found, "budget": budget})
    if found.reason == HANG:
        status = with_condition(status, "Stalled", True, HANG, what, now=now)
    if verdict.action == "FailJob" and verdict.rule is None:
        why = f"{what}; {HOPELESS.format(reason=found.reason)}"
        return _fail(status, LAUNCH_FAILED, what, why, current, succeeded, now)
    if verdict.action == "FailJob":
        why = f"{what}; failurePolicy.rules[{verdict.rule}] says FailJob"
        return _fail(status, "FailurePolicy", what, why, current, succeeded, now)
    if verdict.counts and budget.charged > allowed:
        why = f"{what}; failure {budget.charged}, and failurePolicy.maxRestarts is {allowed}"
        return _fail(status, "MaxRestartsExceeded", what, why, current, succeeded, now)
    if verdict.counts and budget.same_step_failures >= SAME_STEP_FAILURES:
        why = f"{what}; {budget.same_step_failures} failures in a row at step {budget.failed_step}"
        return _fail(status, "NoProgress", what, why, current, succeeded, now)
    if verdict.avoid_node and found.node and found.node not in status.avoided_nodes:
        nodes = [*status.avoided_nodes, found.node][-MAX_AVOIDED_NODES:]
        status = status.model_copy(update={"avoided_nodes": nodes})
    counted = f"failure {budget.charged}, {allowed} allowed"
    text = f"{what}; {counted if verdict.counts else 'not counted against maxRestarts'}"
    if pause:
        text += f"; pods are created again in {duration(pause)}"
    note = Note("Restarting", text, warning=True)
    return _restart(job, status, found.reason, what, note, now, pause=pause)


def _ran_seconds(status: Status, now: float) -> float:
    """For how long all nodes of the attempt have run."""
    running = status.condition("Running")
    if running is None or running.status != "True":
        return 0.0
    return seconds_since(running.last_transition_time, now)


def _what(found: api.Failure) -> str:
    """A failure in a few words."""
    return f"rank {found.rank} (pod {found.pod}): {found.message or found.reason}"


def _fail(
    status: Status,
    reason: str,
    what: str,
    why: str,
    current: Sequence[PodRecord],
    succeeded: set[int],
    now: float,
) -> Plan:
    """The job has failed, for good."""
    status = _finished(status, "Failed", what, current, succeeded, now)
    status = with_condition(status, "Failed", True, reason, why, now=now)
    return Plan(with_summary(status), drop_agent=True, notes=(Note("Failed", why, warning=True),))


def _losses(
    job: DDPJob, status: Status, lost: Sequence[PodRecord], gone: Sequence[int], now: float
) -> list[_NodeFailure]:
    """The failures that pods are deleted, or went with their results unseen; the first cause first.

    What Kubernetes did comes before what somebody did: a drain deletes pods of one job.
    """
    seen: dict[str, Any] = {"attempt": status.attempt, "time": stamp(now)}
    found = [
        api.Failure(
            rank=pod.rank,
            pod=pod.name,
            node=pod.node or None,
            reason=pod.disruption or "PodDeleted",
            message=f"pod {pod.name} is being deleted{_LOSSES.get(pod.disruption, '')}",
            **seen,
        )
        for pod in sorted(lost, key=lambda pod: (not pod.disruption, pod.rank))
    ]
    for rank in gone:
        name = keys.pod_name(job.name, status.attempt, rank)
        words = f"pod {name} is gone, and how it ended was never seen"
        unknown = api.Failure(rank=rank, pod=name, reason="ResultUnknown", message=words, **seen)
        found.append(unknown)
    return [(each.rank or 0, each) for each in found]


def _restart(
    job: DDPJob,
    status: Status,
    reason: str,
    message: str,
    note: Note,
    now: float,
    *,
    pause: float = 0.0,
) -> Plan:
    """A new attempt, whose pods are created after `pause` seconds at the earliest."""
    status = _next_attempt(job, status)
    limited = job.spec.startup_deadline_seconds is not None  # it counts from there
    start = math.ceil(now + pause) if pause else now if limited else None
    later = {"next_restart_time": None if start is None else stamp(start)}
    status = status.model_copy(
        update={
            "state": "Restarting",
            "restarts": status.restarts + 1,
            "budget": status.budget.model_copy(update=later),
        }
    )
    status = with_condition(status, "Running", False, reason, message, now=now)
    return Plan(with_summary(status), notes=(note,))


def _next_attempt(job: DDPJob, status: Status) -> Status:
    progress, budget = status.progress, status.budget
    budget = reached(budget, reported_step(status))
    if progress is not None:  # how far it got stays to be seen; when it would have ended does not
        progress = progress.model_copy(update={"eta_seconds": None, "first_step": None})
    return status.model_copy(
        update={
            "progress": progress,
            "budget": budget,
            # Pods of the last number there is are unheard of, then: they go before any is made.
            "attempt": (status.attempt + 1) % (keys.MAX_ATTEMPT + 1),
            "nodes": api.Nodes(desired=job.spec.nnodes),
            "succeeded_ranks": "",
        }
    )


def _counted(
    job: DDPJob, status: Status, current: Sequence[PodRecord], succeeded: set[int], now: float
) -> Status:
    """`status` with counts, and Running once every node runs or has ended well."""
    nodes = count_nodes(job.spec.nnodes, current, succeeded)
    status = status.model_copy(update={"nodes": nodes})
    if nodes.running + nodes.succeeded == nodes.desired and status.state != "Running":
        own = [table for table in status.pods if table.attempt == status.attempt]
        status = status.model_copy(update={"state": "Running", "pods": own})
        message = f"{nodes.desired} of {nodes.desired} nodes run"
        status = with_condition(status, "Running", True, "AllNodesRunning", message, now=now)
    elif status.state in ("Starting", "Restarting"):
        status = _waiting(status, current, now)
    return with_summary(_watched(job, status, now))


def _waiting(status: Status, current: Sequence[PodRecord], now: float) -> Status:
    """`status` with what keeps the pods from running: said while it does, and no longer."""
    if why := waiting_reason(current):
        return with_condition(status, "Running", False, *why, now=now)
    said, last = status.condition("Running"), status.history[-1:]
    ours = {"Starting", *(attempt.reason for attempt in last)}
    if not current or said is None or said.reason in ours:
        return status
    return with_condition(status, "Running", False, "Starting", CREATING, now=now)


def _watched(job: DDPJob, status: Status, now: float) -> Status:
    """`status` with what is known of hangs; the agents judge them."""
    limit = job.spec.hang_timeout_seconds
    if not limit and status.condition("Stalled"):
        message = "hangTimeoutSeconds is 0"
        return with_condition(status, "Stalled", False, "NotWatched", message, now=now)
    if not limit or status.state != "Running":
        return status
    if status.progress is None or status.progress.first_step is None:
        message = "no step has been seen in this attempt; hangs are judged from the first one on"
        return with_condition(status, "Stalled", None, "NoStep", message, now=now)
    message = f"steps are made; without one for {limit} s the attempt ends"
    return with_condition(status, "Stalled", False, "Progress", message, now=now)


def _missing(
    job: DDPJob,
    status: Status,
    pods: Pods,
    succeeded: set[int],
    observed: Observed,
    now: float,
) -> Plan:
    """Create what is missing, once nothing of another attempt can still run."""
    current, older = pods.current, pods.older
    step = delete(Plan(status), remains(status, older), grace_of(status, older), now)
    present = {pod.rank for pod in current} | succeeded
    missing = tuple(rank for rank in range(job.spec.nnodes) if rank not in present)
    if not missing:
        if observed.invalid is not None:
            words = f"{observed.invalid}; the pods were made before this edit"
            status = with_condition(status, "Accepted", False, "Invalid", words, now=now)
            return replace(step, status=status)
        return replace(step, status=_accepted(job, status, now))
    if any(pod.live for pod in older):
        return step
    if early := [pod for pod in pods.ahead if pod.live]:
        words = "is of an attempt that this job has not begun, and is deleted once it is "
        words += f"{UNHEARD_SECONDS:.0f} s old"
        return replace(step, status=_name_taken(status, early[0], words, now))
    if taken := [pod for pod in pods.strays if pod.rank in missing]:
        words = "is not this job's own, and is deleted"
        return replace(step, status=_name_taken(status, taken[0], words, now))
    wait = -seconds_since(status.budget.next_restart_time, now)
    backoff = job.spec.failure_policy.backoff_seconds
    if 0 < wait <= max(backoff.cap, backoff.first) + 1:  # beyond that some clock has been wrong
        return look_again(step, wait)
    if observed.trouble is not None:
        status = _refused(status, observed, now)
    if not observed.children_ready:
        return replace(step, status=with_summary(status), prepare=True)
    if any(pod.spec_hash != observed.spec_hash for pod in current):
        message = "the job was edited while its pods were being created"
        note = Note("Restarting", message)
        status = with_history(status, "SpecChanged", now)
        return _restart(job, status, "SpecChanged", message, note, now)
    known = _with_root(job, status, observed)
    if status.state not in ("Starting", "Restarting"):
        return replace(step, status=_starting(job, known, now))
    return replace(step, status=known, create=missing if known == status else ())


def _starting(job: DDPJob, status: Status, now: float) -> Status:
    """Starting.

    From here on the spec cannot change, so all pods of the attempt are made from one.
    """
    status = status.model_copy(
        update={
            "state": "Starting",
            "world_size": job.spec.world_size,
            "start_time": status.start_time or stamp(now),
            "nodes": status.nodes.model_copy(update={"desired": job.spec.nnodes}),
        }
    )
    status = _accepted(job, status, now)
    if status.condition("Suspended"):
        message = "spec.suspend is false"
        status = with_condition(status, "Suspended", False, "Resumed", message, now=now)
    status = with_condition(status, "Running", False, "Starting", CREATING, now=now)
    return with_summary(status)


def _accepted(job: DDPJob, status: Status, now: float) -> Status:
    message = "the job can be rendered and its names are free"
    status = with_condition(status, "Accepted", True, "Accepted", message, now=now)
    if job.spec.has_agent:
        if status.condition("AgentAbsent"):
            message = "ddpjob's agent runs what the pods run"
            status = with_condition(status, "AgentAbsent", False, "AgentRuns", message, now=now)
        return status
    message = (
        "launcher none without command runs the image's own entry point, without ddpjob's agent: "
        "no progress, no first cause of a failure"
    )
    return with_condition(status, "AgentAbsent", True, "LauncherNone", message, now=now)


def _name_taken(status: Status, stray: PodRecord, words: str, now: float) -> Status:
    """Say that somebody else's pod is in the way; `words`: what it is, and what becomes of it."""
    words = f"pod {stray.name} {words}"
    if stray.forced:
        words += "; a finalizer of somebody else's keeps it"
    return with_condition(status, "Accepted", False, "NameTaken", words, now=now)


def _refused(status: Status, observed: Observed, now: float) -> Status:
    """Say why nothing can be created, in the words of whoever refused it."""
    trouble = observed.trouble
    if isinstance(trouble, InvalidJob):
        return with_condition(status, "Accepted", False, "Invalid", str(trouble), now=now)
    if isinstance(trouble, AlreadyExists):
        return with_condition(status, "Accepted", False, "NameTaken", trouble.message, now=now)
    return with_condition(status, "Running", False, "CreateRefused", str(trouble), now=now)
