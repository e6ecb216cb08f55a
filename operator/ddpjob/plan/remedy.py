"""Which pods may stay where others are lost. Pure."""

from collections.abc import Sequence

from ddpjob import api, names
from ddpjob.api import Status
from ddpjob.plan.model import PodRecord
from ddpjob.plan.own import Inputs, awaits_pods, known_ranks
from ddpjob.plan.reasons import IN_PLACE, PEER_ENDED, REPLACEABLE
from ddpjob.plan.restart import staying
from ddpjob.plan.termination import is_secondary

# So many pods have taken the places of others. Rank 0's agent gets their names in the head of a
# request, which has 8 KiB.
MAX_REPLACED = 500
# Seconds; after a longer pause nobody would still wait for rank 0's pod: the agent's HEAD_SECONDS.
MOST_PAUSE = 60.0


def survivors(
    inputs: Inputs, status: Status, found: api.Failure, pause: float
) -> Sequence[PodRecord]:
    """Return the pods that stay while the others are replaced; none if all are to be made anew.

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
        return ()
    if inputs.succeeded or not inputs.job.spec.has_agent:
        return ()
    job, table, kept = inputs.job, status.own_pods, staying(inputs)
    new_name = names.pod_name(job.name, status.attempt, job.spec.nnodes - 1, status.round + 1)
    lost = {*range(job.spec.nnodes)} - {pod.rank for pod in kept}
    if len(table.replacements) >= api.MAX_REPLACEMENTS or len(lost | {*table.since}) > MAX_REPLACED:
        return ()
    if len(new_name) > names.MAX_HOSTNAME or 0 in lost and pause > MOST_PAUSE:
        return ()
    ranks, silent = {pod.rank for pod in kept}, inputs.observed.silent
    others = [pod for pod in inputs.current if pod.rank not in ranks]
    fenced = all(
        pod.result or pod.rank in silent or not (pod.forced or pod.unreachable_since)
        for pod in others
    )
    # A pod that is gone may have been deleted by force, and its processes may run on. One that has
    # not been created yet is not gone.
    gone = lost - {pod.rank for pod in others}
    to_come = {*table.since} - known_ranks(status) if awaits_pods(status) else set()
    return kept if fenced and gone <= to_come else ()
