"""Answers a failure: judges it, charges the budget, and begins again or ends the job. Pure."""

from dataclasses import dataclass, replace

from ddpjob import api
from ddpjob.api import Budget, FailurePolicy, Status
from ddpjob.plan.budget import SAME_STEP_FAILURES, Verdict, judge, reported_step, spend
from ddpjob.plan.decision import Decision, Event
from ddpjob.plan.finish import fail
from ddpjob.plan.group import Group
from ddpjob.plan.reasons import (
    CODE_INVALID,
    CODE_REFUSED,
    FAILURE_POLICY,
    HANG,
    LAUNCH_FAILED,
    MAX_RESTARTS_EXCEEDED,
    NO_PROGRESS,
    NOT_STARTED,
    RENDEZVOUS,
    STALLED,
    Reason,
)
from ddpjob.plan.restart import restart
from ddpjob.plan.silent import with_silent_nodes
from ddpjob.plan.status import with_condition, with_history
from ddpjob.times import duration, seconds_since

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


def restart_or_fail(group: Group, status: Status, found: api.Failure) -> Decision:
    """Return the group's next attempt after the failure `found`, or the job's end."""
    judged = judge_failure(group, status, found)
    status, what = judged.status, judged.what
    if judged.end is not None:
        reason, why = judged.end
        return fail(group, status, reason, what, why)
    if judged.verdict.avoid_node and found.node and found.node not in status.avoided_nodes:
        nodes = [*status.avoided_nodes, found.node][-MAX_AVOIDED_NODES:]
        status = status.model_copy(update={"avoided_nodes": nodes})
    status = with_silent_nodes(group, status)
    text = f"{what}; {judged.cost}"
    if judged.pause:
        text += f"; pods are created again in {duration(judged.pause)}"
    event = Event("Restarting", text, warning=True)
    begun = restart(group, status, found.reason, what, pause=judged.pause)
    return replace(begun, events=(event,))


def judge_failure(group: Group, status: Status, found: api.Failure) -> Judged:
    """Return how the failure `found` is judged, and what it costs."""
    policy, now = group.job.spec.failure_policy, group.now
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
    ended = with_history(status, found.reason, now, found=found, charged=verdict.counts)
    status = ended.model_copy(update={"failure": found, "budget": budget})
    if found.reason == HANG:
        status = with_condition(status, STALLED, what, now=now)
    return Judged(status, verdict, pause, what, cost, _end(policy, budget, verdict, found))


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


def _end(
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
