"""Decides what follows from failed and lost ranks. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ddpjob import api
from ddpjob.api import Budget, DDPJob, FailurePolicy, Status
from ddpjob.plan.budget import SAME_STEP_FAILURES, Verdict, judge, reported_step, spend
from ddpjob.plan.finish import fail
from ddpjob.plan.model import Decision, Event, PodRecord
from ddpjob.plan.own import Inputs, known_ranks, name_of
from ddpjob.plan.reasons import (
    CODE_INVALID,
    CODE_REFUSED,
    EVICTED,
    FAILURE_POLICY,
    HANG,
    LAUNCH_FAILED,
    MAX_RESTARTS_EXCEEDED,
    NO_PROGRESS,
    NODE_LOST,
    NODE_REFUSED,
    NODE_SILENT,
    NOT_STARTED,
    PEER_ENDED,
    POD_DELETED,
    PREEMPTED,
    RENDEZVOUS,
    RESULT_UNKNOWN,
    STALLED,
    Reason,
)
from ddpjob.plan.remedy import survivors
from ddpjob.plan.restart import (
    heard_nobody,
    restart,
    restart_in_place,
    silent_pods,
    with_silent_nodes,
)
from ddpjob.plan.status import revision_of, with_condition, with_history
from ddpjob.plan.termination import (
    MAX_MESSAGE,
    by_cause,
    failure,
    first_cause,
    is_secondary,
    late_failure,
    peer_ended,
    secondary_failure,
    termination_of,
    with_rank,
    with_traceback,
)
from ddpjob.ranks import format_ranks
from ddpjob.times import duration, seconds_since, timestamp

HOPELESS = (
    "a restart would end the same way. If it would not, add a rule to failurePolicy with "
    "onReasons: [{reason}] and action: Restart"
)
# As many as the status may hold.
MAX_AVOIDED_NODES = 32


@dataclass(frozen=True)
class Judged:
    """A failure as the policy and the budget judge it."""

    status: Status
    """With the failure, its entry in the history, and what it has cost."""
    verdict: Verdict
    pause: float
    """Seconds before new pods are created."""
    what: str
    """The failure in a few words."""
    cost: str
    """What it has cost, in words."""
    end: tuple[Reason, str] | None
    """Why the job ends with it, if it does, also in words."""


def restart_or_fail(inputs: Inputs, status: Status, found: api.Failure) -> Decision:
    """Return the group's next attempt after the failure `found`, or the job's end."""
    judged = judge_failure(inputs, status, found)
    status, what = judged.status, judged.what
    if judged.end is not None:
        reason, why = judged.end
        return fail(inputs, status, reason, what, why)
    if judged.verdict.avoid_node and found.node and found.node not in status.avoided_nodes:
        nodes = [*status.avoided_nodes, found.node][-MAX_AVOIDED_NODES:]
        status = status.model_copy(update={"avoided_nodes": nodes})
    status = with_silent_nodes(inputs, status)
    text = f"{what}; {judged.cost}"
    stay = None if judged.verdict.avoid_node else survivors(inputs, status, found, judged.pause)
    pause = judged.pause
    if stay:
        pause = pause if stay.created else 0.0
        text += f"; {stay.words}, in round {status.round + 1}"
        begun = restart_in_place(inputs, status, found.reason, what, stay, pause=pause)
    else:
        begun = restart(inputs, status, found.reason, what, pause=pause)
    if pause:
        text += f"; pods are created again in {duration(pause)}"
    return replace(begun, events=(Event("Restarting", text, warning=True),))


def judge_failure(inputs: Inputs, status: Status, found: api.Failure) -> Judged:
    """Return how the failure `found` is judged, and what it costs."""
    policy, now = inputs.job.spec.failure_policy, inputs.now
    verdict = _verdict(policy, status, found)
    budget, pause = spend(
        status.budget,
        reported_step(status),
        counts=verdict.counts,
        ran_seconds=_ran_seconds(status, now),
        backoff=policy.backoff_seconds,
    )
    if found.reason == NOT_STARTED:  # not at once, so that other jobs can have its nodes
        pause = max(pause, policy.backoff_seconds.first, 1.0)
    what, cost = words_of(found), "not counted against maxRestarts"
    if verdict.counts:
        cost = f"failure {budget.charged}, {policy.max_restarts} allowed"
    if found.round == status.round:
        found = found.model_copy(update={"revision": revision_of(status)})
    ended = with_history(status, found.reason, now, found=found, charged=verdict.counts)
    status = ended.model_copy(update={"failure": found, "budget": budget})
    if found.reason == HANG:
        status = with_condition(status, STALLED, what, now=now)
    return Judged(status, verdict, pause, what, cost, end_of(policy, budget, verdict, found))


def _verdict(policy: FailurePolicy, status: Status, found: api.Failure) -> Verdict:
    """Return the policy's verdict, or that the failure has been answered before."""
    # If the job has trained before, a script that is not found is missing on one node only.
    verdict = judge(policy, found, has_trained=status.progress is not None)
    if found.round < status.round:
        # It was judged and charged when its round ended. Pods that could not go on to the next
        # round say the same again.
        return replace(verdict, action="Restart", counts=False)
    if found.reason == RENDEZVOUS and verdict.rule is None and status.state != "Running":
        return replace(verdict, counts=False)  # it waited for nodes that were never there
    return verdict


def end_of(
    policy: FailurePolicy, budget: Budget, verdict: Verdict, found: api.Failure
) -> tuple[Reason, str] | None:
    """Return why the job ends with the failure `found`; None if it goes on."""
    what = words_of(found)
    if verdict.action == "FailJob" and verdict.rule is None:
        reason = CODE_REFUSED if found.reason == CODE_INVALID else LAUNCH_FAILED
        return reason, f"{what}; {HOPELESS.format(reason=found.reason)}"
    if verdict.action == "FailJob":
        return FAILURE_POLICY, f"{what}; failurePolicy.rules[{verdict.rule}] says FailJob"
    if not verdict.counts:
        return None
    if budget.charged > policy.max_restarts:
        allowed = f"failurePolicy.maxRestarts is {policy.max_restarts}"
        return MAX_RESTARTS_EXCEEDED, f"{what}; failure {budget.charged}, and {allowed}"
    if budget.same_step_failures >= SAME_STEP_FAILURES:
        row = f"{budget.same_step_failures} failures in a row at step {budget.failed_step}"
        return NO_PROGRESS, f"{what}; {row}"
    return None


def words_of(found: api.Failure) -> str:
    """Return a failure in a few words."""
    who = f"pod {found.pod}" if found.rank is None else f"rank {found.rank} (pod {found.pod})"
    return f"{who}: {found.message or found.reason}"


def _ran_seconds(status: Status, now: float) -> float:
    """Return for how many seconds all nodes of the round have run."""
    running = status.condition("Running")
    if running is None or running.status != "True":
        return 0.0
    return seconds_since(running.last_transition_time, now)


_LOSSES = {
    EVICTED: ": evicted",
    PREEMPTED: ": preempted by another pod",
    NODE_LOST: ": its node is lost",
    NODE_REFUSED: ": its node refused it",
}
# Failures whose messages are searched in one decision: a second's work at worst. And its Events.
MAX_SEARCHED, MAX_EVENTS = 32, 4
# Characters that are kept of a failure's message if words about other ranks follow it.
MAX_WORDS = 800
# How long the primary failure is waited for while only secondary ones are seen. A busy node is slow
# to report.
PRIMARY_WAIT_SECONDS = 10.0
# Parts of the node timeout. A node that has ended for want of rank 0 has done so half of it before
# rank 0 counts as silent; an operator that has begun since has yet to miss rank 0 for all of it.
# If rank 0 has ended for want of the others, those that have not count as silent sooner.
SILENCE_PART, NEW_SILENCE_PART, LEFT_SILENCE_PART = 0.5, 1.5, 0.75

# Node rank of the pod, and its failure. The failure may have the rank of a process in the pod.
_NodeFailure = tuple[int, api.Failure]
# What follows from the failure that all others follow from.
_Answer = Callable[[Inputs, Status, api.Failure], Decision]


def after_failure(
    inputs: Inputs, status: Status, answer: _Answer = restart_or_fail
) -> Decision | None:
    """Return what follows from failed and lost ranks, or None if there are none.

    That is a restart, the job's end, or a short wait for the primary failure.
    """
    job, observed, succeeded = inputs.job, inputs.observed, inputs.succeeded
    processes = job.spec.processes_per_node
    rest = [pod for pod in inputs.current if pod.rank not in succeeded]
    silent = [pod for pod in silent_pods(inputs) if pod.rank not in succeeded]
    lost = [pod for pod in rest if pod.deleting] + silent
    failed = [pod for pod in rest if pod.result == "failed" and not pod.deleting]
    gone = _gone_ranks(inputs, rest)
    if ignored := _ignored(job, _in_order(failed, status.round, processes)):
        return _ignore(status, ignored, succeeded)
    # If Kubernetes ends one of the pods, a pod that failed without a termination message failed
    # because of that.
    disrupted = any(pod.disruption for pod in lost)
    primary = [
        pod
        for pod in failed
        if not is_secondary(pod) and not (disrupted and termination_of(pod) is None)
    ]
    if primary:
        first = first_cause(primary)
        found = with_traceback(failure(first, status.round), first)
        return answer(inputs, status, with_rank(found, first.rank, processes))
    if gone and not lost and not observed.confirmed:
        return Decision(job.status, confirm=True)
    if lost or gone:
        losses = _losses(inputs, status, lost, gone)
        if ignored := _ignored(job, losses):
            return _ignore(status, ignored, succeeded)
        return answer(inputs, status, losses[0][1])
    if not failed:
        return None
    left = _seconds_to_wait(inputs, rest, failed) - observed.secondary_seconds
    if left > 0 and any(pod.live for pod in rest):
        return Decision(status, only_secondary=True, requeue_after=left)
    if peer := _peer_ended(inputs, failed, status.round):
        return answer(inputs, status, with_rank(peer, inputs.rank_of(peer.pod), processes))
    late = late_failure(failed, [pod for pod in rest if pod.live], status.round)
    found = late or secondary_failure(failed, status.round)
    found = with_rank(found, inputs.rank_of(found.pod), processes)
    return answer(inputs, status, found if late else _with_bystanders(found, rest, succeeded))


def _seconds_to_wait(
    inputs: Inputs, rest: Sequence[PodRecord], failed: Sequence[PodRecord]
) -> float:
    """Return for how long the primary failure is waited for.

    A node that has not heard rank 0 may have been the one that was cut off, or rank 0 was. The same
    holds for a rank 0 that heard nobody.
    """
    rank_0 = next((pod for pod in rest if pod.rank == 0), None)
    if rank_0 is None or not any(heard_nobody(pod) for pod in failed):
        return PRIMARY_WAIT_SECONDS
    if not rank_0.running:
        part = LEFT_SILENCE_PART if heard_nobody(rank_0) else 0.0
        return PRIMARY_WAIT_SECONDS + part * rank_0.node_timeout
    said = inputs.observed.round_status
    if said is not None and said.attempt == rank_0.attempt:
        return max(PRIMARY_WAIT_SECONDS, SILENCE_PART * rank_0.node_timeout)
    return PRIMARY_WAIT_SECONDS + NEW_SILENCE_PART * rank_0.node_timeout


def _peer_ended(
    inputs: Inputs, failed: Sequence[PodRecord], current_round: int
) -> api.Failure | None:
    """Return the failure of a rank that has ended well before the others, or None.

    A node's agent has named one of its own ranks, or says no more than that a rank is gone.
    """
    first = first_cause(failed)
    termination = termination_of(first)
    if termination is not None and termination.reason == PEER_ENDED:
        return secondary_failure(failed, current_round)
    if termination is None or not termination.secondary or termination.maybe_primary:
        return None
    ended = [pod for pod in inputs.current if pod.result == "succeeded"]
    if not ended or any(pod.unreachable_since for pod in inputs.current):
        return None
    # The last one: the training had gone on without those that left before.
    return peer_ended(secondary_failure(failed, current_round), first, by_cause(ended)[-1])


def _with_bystanders(
    found: api.Failure, rest: Sequence[PodRecord], succeeded: Set[int]
) -> api.Failure:
    """Return `found`, a secondary failure, with the ranks that may have caused it.

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


def _in_order(
    failed: Sequence[PodRecord], current_round: int, processes: int
) -> Iterator[_NodeFailure]:
    """Yield the failures of these pods, the first cause first.

    Those of earlier rounds have been answered, and whether to ignore them is no question any more.
    """
    for pod in by_cause(failed):
        found = failure(pod, current_round)
        if found.round == current_round:
            yield pod.rank, with_rank(found, pod.rank, processes)


def _ignored(job: DDPJob, failures: Iterable[_NodeFailure]) -> list[_NodeFailure]:
    """Return the failures that a rule ignores; `failures` come with the first cause first.

    Searching messages takes time, and thousands of pods may fail at once. So one decision judges
    only the first MAX_SEARCHED. If some are ignored, the next decision judges those after them. If
    none is, the group restarts because of the first.
    """
    policy = job.spec.failure_policy
    if all(rule.action != "Ignore" for rule in policy.rules):
        return []
    if policy.message_patterns():
        failures = islice(failures, MAX_SEARCHED)
    return [pair for pair in failures if judge(policy, pair[1]).action == "Ignore"]


def _ignore(status: Status, ignored: Sequence[_NodeFailure], succeeded: Set[int]) -> Decision:
    """Return the status in which the ignored nodes count as finished."""
    finished = succeeded | {rank for rank, _ in ignored}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(finished)})
    words = (f"{words_of(found)}; ignored by a rule of failurePolicy" for _, found in ignored)
    events = (Event("Ignored", text, warning=True) for text in islice(words, MAX_EVENTS))
    return Decision(status, events=tuple(events))


def _is_whole(status: Status) -> bool:
    """Whether all pods of the attempt have existed, so that a missing one is gone."""
    nodes = status.nodes
    counted = nodes.pending + nodes.running + nodes.succeeded + nodes.failed
    return counted == nodes.desired > 0


def _gone_ranks(inputs: Inputs, rest: Sequence[PodRecord]) -> list[int]:
    """Return the node ranks whose pods have existed and exist no more."""
    job = inputs.job
    nodes = range(job.status.nodes.desired)
    existed = nodes if _is_whole(job.status) else known_ranks(job.status) & {*nodes}
    present = {pod.rank for pod in rest} | inputs.succeeded
    return [rank for rank in sorted(existed) if rank not in present]


def _losses(
    inputs: Inputs, status: Status, lost: Sequence[PodRecord], gone: Sequence[int]
) -> list[_NodeFailure]:
    """Return a failure for each lost or gone pod, the first cause first.

    Kubernetes' own deletions come before a user's, because a drain deletes pods of one job too.
    """
    seen: dict[str, Any] = {
        "attempt": status.attempt,
        "round": status.round,
        "time": timestamp(inputs.now),
    }
    found = list[_NodeFailure]()
    for pod in sorted(lost, key=lambda pod: (_loss_of(pod) == POD_DELETED, pod.rank)):
        reason, words = _loss_of(pod), _words_of_loss(pod)
        where = {**seen, "pod": pod.name, "node": pod.node or None}
        found.append((pod.rank, api.Failure(**where, reason=reason, message=words)))
    for rank in gone:
        name = name_of(inputs.job, status, rank)
        words = f"pod {name} is gone, and how it ended was never seen"
        unknown = api.Failure(pod=name, reason=RESULT_UNKNOWN, message=words, **seen)
        found.append((rank, unknown))
    processes = inputs.job.spec.processes_per_node
    return [(rank, with_rank(each, rank, processes)) for rank, each in found]


def _loss_of(pod: PodRecord) -> str:
    """Return the reason for which a pod is lost: it is being deleted, or its node is silent."""
    return pod.disruption or (POD_DELETED if pod.deleting else NODE_SILENT)


def _words_of_loss(pod: PodRecord) -> str:
    if not pod.deleting and not pod.disruption:
        return f"nobody has heard node {pod.node} for {pod.node_timeout} s"
    return f"pod {pod.name} is being deleted{_LOSSES.get(pod.disruption, '')}"
