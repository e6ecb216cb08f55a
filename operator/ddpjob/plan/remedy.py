"""Which pods may stay where others are lost. Pure."""

from ddpjob import api, names
from ddpjob.api import Status
from ddpjob.plan.own import Inputs
from ddpjob.plan.reasons import IN_PLACE, PEER_ENDED, REPLACEABLE
from ddpjob.plan.restart import Survivors, staying
from ddpjob.plan.sizes import are_fenced, filled, smaller
from ddpjob.plan.termination import is_secondary

# Seconds; after a longer pause nobody would still wait for rank 0's pod: the agent's HEAD_SECONDS.
MOST_PAUSE = 60.0


def survivors(inputs: Inputs, status: Status, found: api.Failure, pause: float) -> Survivors | None:
    """Return who goes on while lost pods are replaced; None if all are to be made anew.

    `found` is what has failed; `pause` are the seconds before pods are created. `status` has spent
    the budget for it.

    The ranks of a pod that is replaced have to be dead before the next round begins, and nothing
    but the round would tell what they still write from what the next ones do. So each must have
    ended, be deleted in order, or be fenced: its node is silent.
    """
    failed = (pod for pod in inputs.current if pod.result == "failed")
    is_known = found.reason != PEER_ENDED and any(not is_secondary(pod) for pod in failed)
    is_first = status.budget.consecutive_restarts == 1
    processes = found.reason in IN_PLACE and is_first and is_known
    if not (processes or found.reason in REPLACEABLE) or found.round != status.round:
        return None
    if inputs.succeeded or not inputs.job.spec.has_agent:
        return None
    begun = [pod for pod in inputs.current if pod.running or pod.result]
    if status.round == 0 and len(begun) < inputs.size and not inputs.job.spec.elastic:
        return None  # agents whose ranks wait for others in torchrun hear of no order yet
    job, group = inputs.job, filled(inputs, status, staying(inputs), inputs.size)
    if group is None:
        return None
    if group.created and job.spec.elastic and not job.spec.elastic.replace_seconds:
        group = smaller(inputs, status) or group
    new_name = names.pod_name(job.name, status.attempt, job.spec.nnodes - 1, status.round + 1)
    if group.created and len(new_name) > names.MAX_HOSTNAME:
        return None
    if 0 in group.created and pause > MOST_PAUSE or not (group.kept or group.taking):
        return None
    return group if are_fenced(inputs, status, group) else None
