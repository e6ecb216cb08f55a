"""Which pods may stay where others are lost. Pure."""

from collections.abc import Sequence

from ddpjob import api, names
from ddpjob.api import Status
from ddpjob.plan.model import PodRecord
from ddpjob.plan.own import Inputs, awaits_pods, known_ranks
from ddpjob.plan.reasons import IN_PLACE, PEER_ENDED, REPLACEABLE
from ddpjob.plan.restart import staying
from ddpjob.plan.sizes import Survivors, smaller
from ddpjob.plan.spares import takers
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
    job = inputs.job
    kept: Sequence[PodRecord] = staying(inputs)
    new_name = names.pod_name(job.name, status.attempt, job.spec.nnodes - 1, status.round + 1)
    lost = {*range(inputs.size)} - {pod.rank for pod in kept}
    if not status.own_pods.has_room(lost):
        return None
    taking = takers(inputs, status, lost)
    created = sorted(lost - taking.keys())
    elastic = job.spec.elastic
    fewer = smaller(inputs, status) if created and elastic and not elastic.replace_seconds else None
    if fewer is not None:
        kept, taking, created = fewer.kept, fewer.taking, []
    if created and len(new_name) > names.MAX_HOSTNAME or 0 in created and pause > MOST_PAUSE:
        return None
    names_of = {pod.name for pod in (*kept, *taking.values())}
    silent = inputs.observed.silent
    others = [pod for pod in inputs.current if pod.name not in names_of]
    fenced = all(
        pod.result or pod.rank in silent or not (pod.forced or pod.unreachable_since)
        for pod in others
    )
    # A pod that is gone may have been deleted by force, and its processes may run on. One that has
    # not been created yet is not gone.
    gone = lost - {pod.rank for pod in others}
    to_come = {*status.own_pods.since} - known_ranks(status) if awaits_pods(status) else set()
    found_all = bool(kept or taking) and fenced and gone <= to_come
    size = inputs.size if fewer is None else fewer.size
    return Survivors(kept, taking, created, size) if found_all else None
