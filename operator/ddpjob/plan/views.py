"""Pods whose ranks have ended, and that wait for an order, as if they had ended with that. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from ddpjob.api import Status
from ddpjob.plan.model import MAX_TEXT, PodRecord
from ddpjob.plan.own import Inputs
from ddpjob.plan.termination import termination_of


def views(inputs: Inputs, status: Status) -> Mapping[int, PodRecord]:
    """Return, by node rank, the pods whose ranks have ended, as if they had ended with that."""
    seen = inputs.observed.round_status
    if seen is None or (seen.attempt, seen.round) != (status.attempt, status.round):
        return {}
    exits = {each.rank: each for each in seen.exits}
    found = dict[int, PodRecord]()
    for pod in inputs.current:
        if (node := exits.get(pod.rank)) is None or not pod.running or pod.deleting:
            continue
        view = replace(
            pod,
            result="failed" if node.exit_code else "succeeded",
            exit_code=node.exit_code,
            message=node.message[:MAX_TEXT],
            finished_at=None,
        )
        termination = termination_of(view)
        if termination is None or termination.round == status.round:  # others have been answered
            found[pod.rank] = view
    return found
