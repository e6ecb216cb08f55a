"""What follows from failed and lost ranks. Pure."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Any

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.plan.budget import (
    LAUNCH_FAILED,
    SAME_STEP_FAILURES,
    judge,
    reported_step,
    spend,
)
from ddpjob.plan.decision import Note, Plan
from ddpjob.plan.finish import fail
from ddpjob.plan.group import Group
from ddpjob.plan.observed import NOT_STARTED, SAVED, PodRecord
from ddpjob.plan.own import known_ranks
from ddpjob.plan.restart import restart
from ddpjob.plan.status import duration, with_condition, with_history
from ddpjob.plan.termination import (
    HANG,
    MAX_MESSAGE,
    by_cause,
    failure,
    first_cause,
    is_noise,
    late_failure,
    noise_failure,
    word_of,
)
from ddpjob.ranks import format_ranks
from ddpjob.times import seconds_since, stamp

RENDEZVOUS = "Rendezvous"  # as the agent calls it
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
MAX_AVOIDED_NODES = 32  # as many as status may hold
MAX_SEARCHED = 32  # failures whose messages are searched in one step: a second's work at worst
MAX_NOTES = 4  # Events in one step
MAX_WORDS = 800  # characters of a rank's message that stand before those of others
NOISE_SECONDS = 10.0  # while only peers' noise is seen; a busy node is slow to tell the cause

_NodeFailure = tuple[int, api.Failure]
"""Of the pod of which node rank; the failure may name another rank, of a process in it."""


def after_failure(group: Group, status: Status) -> Plan | None:
    """What follows from failed and lost ranks.

    A restart, the end, or a short wait for the cause.
    """
    job, observed, succeeded = group.job, group.observed, group.succeeded
    rest = [pod for pod in group.current if pod.rank not in succeeded]
    lost = [pod for pod in rest if pod.deleting]
    failed = [pod for pod in rest if pod.result == "failed" and not pod.deleting]
    gone = _gone(group, rest)
    if ignored := _ignored(job, _in_order(failed)):
        return _ignore(status, ignored, succeeded)
    # Beside a pod that Kubernetes ends, one without an agent's word has failed because of it.
    disrupted = any(pod.disruption for pod in lost)
    own = [pod for pod in failed if not is_noise(pod) and not (disrupted and word_of(pod) is None)]
    if own:
        return restart_or_fail(group, status, failure(first_cause(own)))
    if gone and not lost and not observed.looked:
        return Plan(job.status, look=True)
    if lost or gone:
        losses = _losses(group, status, lost, gone)
        if ignored := _ignored(job, losses):
            return _ignore(status, ignored, succeeded)
        return restart_or_fail(group, status, losses[0][1])
    if not failed:
        return None
    waited = observed.noise_seconds
    if waited < NOISE_SECONDS and any(pod.live for pod in rest):
        return Plan(status, noise=True, look_again=NOISE_SECONDS - waited)
    late = late_failure(failed, [pod for pod in rest if pod.live])
    found = late or _with_suspects(noise_failure(failed), rest, succeeded)
    return restart_or_fail(group, status, found)


def restart_or_fail(group: Group, status: Status, found: api.Failure) -> Plan:
    """The group has failed, `found` is why: it starts again, or that was the end."""
    policy, now = group.job.spec.failure_policy, group.now
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
        return fail(group, status, LAUNCH_FAILED, what, why)
    if verdict.action == "FailJob":
        why = f"{what}; failurePolicy.rules[{verdict.rule}] says FailJob"
        return fail(group, status, "FailurePolicy", what, why)
    if verdict.counts and budget.charged > allowed:
        why = f"{what}; failure {budget.charged}, and failurePolicy.maxRestarts is {allowed}"
        return fail(group, status, "MaxRestartsExceeded", what, why)
    if verdict.counts and budget.same_step_failures >= SAME_STEP_FAILURES:
        why = f"{what}; {budget.same_step_failures} failures in a row at step {budget.failed_step}"
        return fail(group, status, "NoProgress", what, why)
    if verdict.avoid_node and found.node and found.node not in status.avoided_nodes:
        nodes = [*status.avoided_nodes, found.node][-MAX_AVOIDED_NODES:]
        status = status.model_copy(update={"avoided_nodes": nodes})
    counted = f"failure {budget.charged}, {allowed} allowed"
    text = f"{what}; {counted if verdict.counts else 'not counted against maxRestarts'}"
    if pause:
        text += f"; pods are created again in {duration(pause)}"
    note = Note("Restarting", text, warning=True)
    return replace(restart(group, status, found.reason, what, pause=pause), notes=(note,))


def _with_suspects(
    found: api.Failure, rest: Sequence[PodRecord], succeeded: Set[int]
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


def _ignore(status: Status, ignored: Sequence[_NodeFailure], succeeded: Set[int]) -> Plan:
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


def _gone(group: Group, rest: Sequence[PodRecord]) -> list[int]:
    """Node ranks whose pods have existed, and do not any more."""
    job = group.job
    nodes = range(job.status.nodes.desired)
    existed = nodes if _created(job.status) else known_ranks(job.status) & {*nodes}
    present = {pod.rank for pod in rest} | group.succeeded
    return [rank for rank in sorted(existed) if rank not in present]


def _ran_seconds(status: Status, now: float) -> float:
    """For how long all nodes of the attempt have run."""
    running = status.condition("Running")
    if running is None or running.status != "True":
        return 0.0
    return seconds_since(running.last_transition_time, now)


def _what(found: api.Failure) -> str:
    """A failure in a few words."""
    return f"rank {found.rank} (pod {found.pod}): {found.message or found.reason}"


def _losses(
    group: Group, status: Status, lost: Sequence[PodRecord], gone: Sequence[int]
) -> list[_NodeFailure]:
    """The failures that pods are deleted, or went with their results unseen; the first cause first.

    What Kubernetes did comes before what somebody did: a drain deletes pods of one job.
    """
    seen: dict[str, Any] = {"attempt": status.attempt, "time": stamp(group.now)}
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
        name = names.pod_name(group.job.name, status.attempt, rank)
        words = f"pod {name} is gone, and how it ended was never seen"
        unknown = api.Failure(rank=rank, pod=name, reason="ResultUnknown", message=words, **seen)
        found.append(unknown)
    return [(each.rank or 0, each) for each in found]
