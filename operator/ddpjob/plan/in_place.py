"""What follows from ranks that have failed while their pods run: the attempt's next round. Pure.

An agent whose ranks have failed waits to be asked on, and says how they ended. If the group can go
on in its pods, it does. Otherwise the agents end their pods, and what follows is decided by that.
"""

from collections.abc import Mapping
from dataclasses import replace

from ddpjob import api
from ddpjob.api import Status
from ddpjob.plan.budget import is_hopeless
from ddpjob.plan.failure import after_failure, judge_failure, restart_or_fail
from ddpjob.plan.idle import rest
from ddpjob.plan.model import Decision, Event, PodRecord, requeue
from ddpjob.plan.own import Inputs, name_of
from ddpjob.plan.reasons import FOREIGN_ORDER, IN_PLACE
from ddpjob.plan.restart import restart_in_place, staying
from ddpjob.plan.running import with_report
from ddpjob.plan.sizes import larger
from ddpjob.plan.termination import final_report, termination_of
from ddpjob.plan.views import views
from ddpjob.times import timestamp


def after_exits(inputs: Inputs, status: Status) -> Decision | None:
    """Return what follows from failures that only agents have seen, or None if there are none.

    That is the next round, a short wait for the primary failure, or that the agents end their pods.
    They are judged as if their pods had ended so.
    """
    if foreign := _foreign_order(inputs, status):
        return foreign
    found = views(inputs, status)
    if all(view.result == "succeeded" for view in found.values()):
        return None
    seen = _with_views(inputs, found)
    decision = after_failure(seen, with_report(status, final_report(seen.current)), _next_round)
    if decision is not None and (decision.only_secondary or decision.status.round != status.round):
        return decision
    return Decision(status, end_round=True)


def _foreign_order(inputs: Inputs, status: Status) -> Decision | None:
    """Return the end of an attempt that is in a round which no operator has ordered.

    Somebody else has the job's token. Another operator's order is in the status that it wrote.
    """
    seen = inputs.observed.round_status
    if seen is None or seen.attempt != status.attempt or seen.round <= status.round:
        return None
    if not inputs.observed.confirmed:
        return Decision(inputs.job.status, confirm=True)
    head = name_of(inputs.job, status, 0)
    words = f"its agent is in round {seen.round}, and the operator has ordered {status.round}"
    found = api.Failure(
        attempt=status.attempt,
        round=status.round,
        pod=head,
        reason=FOREIGN_ORDER,
        message=words,
        time=timestamp(inputs.now),
    )
    return restart_or_fail(inputs, status, found)


def with_ends(inputs: Inputs, status: Status) -> Inputs:
    """Return the group with pods whose ranks have ended well, and wait for others, as ended."""
    found = views(inputs, status)
    ended = {rank: view for rank, view in found.items() if view.result == "succeeded"}
    return _with_views(inputs, ended) if ended else inputs


def _with_views(inputs: Inputs, views: Mapping[int, PodRecord]) -> Inputs:
    current = [views.get(pod.rank, pod) for pod in inputs.current]
    return replace(inputs, pods=replace(inputs.pods, current=current))


def is_waiting(decision: Decision) -> bool:
    """Whether it says no more than what to wait for."""
    return decision.only_secondary or decision.end_round


def with_wait(decision: Decision, waiting: Decision | None) -> Decision:
    """Return `decision` with what `waiting` waits for."""
    if waiting is None:
        return decision
    decision = replace(
        decision,
        only_secondary=decision.only_secondary or waiting.only_secondary,
        end_round=decision.end_round or waiting.end_round,
    )
    return requeue(decision, waiting.requeue_after)


def _next_round(inputs: Inputs, status: Status, found: api.Failure) -> Decision:
    """Return the next round after the failure `found`, or that the agents end their pods."""
    judged = judge_failure(inputs, status, found)
    is_new = status.program is not None and 0 < status.program.round == status.round
    is_vain = judged.end is not None or is_new and is_hopeless(found)  # the edit's own fault
    if inputs.job.spec.kept_seconds and is_vain:
        why = judged.end[1] if judged.end else judged.what
        return rest(inputs, judged.status, found.reason, why)
    ends = judged.end is not None or judged.verdict.avoid_node or found.reason not in IN_PLACE
    # A second restart in a row wants new pods: what is in the old ones may be the cause.
    first = judged.status.budget.consecutive_restarts == 1
    may_stay = len(staying(inputs)) == inputs.size and not inputs.succeeded
    if ends or not (first or _has_stepped(inputs, status)) or not may_stay:
        return Decision(status, end_round=True)
    more = larger(inputs, judged.status)
    begun = restart_in_place(inputs, judged.status, found.reason, judged.what, more)
    text = f"{judged.what}; {judged.cost}; in place, as round {begun.status.round}"
    text += f", with {more.size} nodes: {more.words}" if more else ""
    return replace(begun, events=(Event("Restarting", text, warning=True),))


def _has_stepped(inputs: Inputs, status: Status) -> bool:
    """Whether a step of this round has been seen: by a failed node's agent, or in rank 0's report.

    A rank that fails soon after its first step may do so before rank 0 has reported one.
    """
    ended = [found for pod in inputs.current if pod.result and (found := termination_of(pod))]
    if any(found.stepped and found.round == status.round for found in ended):
        return True
    progress = status.current_progress
    if progress is None:
        return False
    # A progress file may begin with the step at which the script goes on, before it makes one.
    first = progress.first_step if progress.source == "file" else 0
    return first is not None and progress.step > first
