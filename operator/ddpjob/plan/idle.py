"""Kept pods: what follows once all ranks have ended, well or for good. Pure.

The job is Idle then: its next round is ordered, and does not begin. So no rank lives, and all pods
wait for an edit of what the ranks run. After `keepSeconds`, or without one of the pods, the agents
end them with what their last ranks have ended with.
"""

from dataclasses import replace

from ddpjob.api import Status
from ddpjob.plan.budget import judge
from ddpjob.plan.failure import end_of, words_of
from ddpjob.plan.finish import complete, fail
from ddpjob.plan.model import Decision, Event, requeue
from ddpjob.plan.own import Inputs
from ddpjob.plan.reasons import IDLE, INVALID, MAX_RESTARTS_EXCEEDED, because
from ddpjob.plan.restart import with_reached
from ddpjob.plan.running import with_counts
from ddpjob.plan.status import with_accepted, with_condition, with_history
from ddpjob.plan.termination import final_result
from ddpjob.plan.views import views
from ddpjob.times import duration, seconds_since

SUCCEEDED = "Succeeded"
# Agents that are told to end their pods do so by then, or these are deleted.
END_SECONDS = 30.0


def rest(inputs: Inputs, status: Status, reason: str, why: str) -> Decision:
    """Return that the job is Idle, whose round has ended with `reason`."""
    status = with_reached(status)
    update = {"state": "Idle", "round": status.round + 1}
    status = status.model_copy(update=update)
    seconds = inputs.job.spec.kept_seconds
    text = f"{why}; the pods stay for {duration(seconds)}, to run what args, env or code are next"
    named = IDLE if reason == SUCCEEDED else because(IDLE, reason)
    status = with_condition(status, named, text, now=inputs.now)
    return Decision(status, events=(Event(IDLE.name, text, warning=reason != SUCCEEDED),))


def rest_after_success(inputs: Inputs, status: Status) -> Decision | None:
    """Return that the job is Idle if the ranks have ended well; None if some have not."""
    seen, spec = inputs.observed.round_status, inputs.job.spec
    if not spec.kept_seconds or seen is None:
        return None
    if (seen.attempt, seen.round) != (status.attempt, status.round):
        return None
    codes = {each.rank: each.exit_code for each in seen.exits}
    is_done = seen.over and not any(codes.values())
    if not is_done and (spec.success_policy == "All" or codes.get(0) != 0):
        return None
    status = with_history(status, SUCCEEDED, inputs.now)
    status = status.model_copy(update={"result": final_result(views(inputs, status).values())})
    who = "all ranks have" if is_done else "rank 0 has"
    return rest(inputs, status, SUCCEEDED, f"{who} ended with exit code 0")


def idle(inputs: Inputs, status: Status) -> Decision:
    """Return what follows for a job that is Idle: nothing, or its end."""
    seconds = inputs.job.spec.kept_seconds - seconds_since(status.goodput.since, inputs.now)
    is_whole = len(inputs.current) == inputs.size
    lost = not is_whole or any(pod.deleting or not pod.running for pod in inputs.current)
    lost |= bool(inputs.observed.silent)
    if seconds > 0 and not lost:
        if inputs.observed.edit_error is not None:
            words = f"{inputs.observed.edit_error}; nothing runs because of this edit"
            status = with_condition(status, INVALID, words, now=inputs.now)
        else:
            status = with_accepted(inputs.job, status, inputs.now)
        return requeue(Decision(with_counts(inputs, status)), seconds)
    live = any(pod.live and not pod.deleting for pod in inputs.current)
    if live and -END_SECONDS < seconds <= 0:
        return requeue(Decision(status, end_round=True), seconds + END_SECONDS)
    if not inputs.observed.confirmed:
        return Decision(inputs.job.status, confirm=True)
    decision = _end(inputs, status)
    if seconds <= 0:
        return decision
    text = "a kept pod is gone, so nothing else can run: the job ends as its last ranks have ended"
    return replace(decision, events=(Event("KeptPodLost", text, warning=True), *decision.events))


def _end(inputs: Inputs, status: Status) -> Decision:
    """Return the job's end, as its last ranks have ended."""
    ended = status.history[-1].reason if status.history else SUCCEEDED
    if ended == SUCCEEDED or status.failure is None:
        return complete(inputs, status)
    policy, what = inputs.job.spec.failure_policy, words_of(status.failure)
    verdict = judge(policy, status.failure, has_trained=status.progress is not None)
    judged = end_of(policy, status.budget, verdict, status.failure)
    reason, why = judged or (MAX_RESTARTS_EXCEEDED, f"{what}; nothing else was asked for")
    return fail(inputs, status, reason, what, why)
