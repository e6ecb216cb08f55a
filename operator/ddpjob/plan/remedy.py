"""Which pods may stay where others are lost. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpjob import api, names
from ddpjob.api import Status
from ddpjob.plan.model import PodRecord
from ddpjob.plan.own import Inputs, awaits_pods, known_ranks
from ddpjob.plan.reasons import IN_PLACE, PEER_ENDED, REPLACEABLE
from ddpjob.plan.restart import staying
from ddpjob.plan.spares import takers
from ddpjob.plan.termination import is_secondary
from ddpjob.ranks import format_ranks

# So many pods have taken the places of others. Rank 0's agent gets their names in the head of a
# request, which has 8 KiB.
MAX_REPLACED = 500
# Seconds; after a longer pause nobody would still wait for rank 0's pod: the agent's HEAD_SECONDS.
MOST_PAUSE = 60.0


@dataclass(frozen=True)
class Survivors:
    """The pods that go on when others are lost."""

    kept: Sequence[PodRecord]
    taking: Mapping[int, PodRecord]
    """Spares, by the ranks that they get."""
    created: Sequence[int]
    """Node ranks whose pods are to be created."""

    @property
    def words(self) -> str:
        """What becomes of the lost pods."""
        words = [f"spare {pod.name} gets node rank {rank}" for rank, pod in self.taking.items()]
        if self.created:
            words.append(f"the pod of node rank {format_ranks(self.created)} is replaced")
        return ", ".join(words)


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
    job, table, kept = inputs.job, status.own_pods, staying(inputs)
    new_name = names.pod_name(job.name, status.attempt, job.spec.nnodes - 1, status.round + 1)
    lost = {*range(job.spec.nnodes)} - {pod.rank for pod in kept}
    if len(table.replacements) >= api.MAX_REPLACEMENTS or len(lost | {*table.since}) > MAX_REPLACED:
        return None
    taking = takers(inputs, status, lost)
    created = sorted(lost - taking.keys())
    if created and len(new_name) > names.MAX_HOSTNAME or 0 in created and pause > MOST_PAUSE:
        return None
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
    found_all = bool(kept or taking) and fenced and gone <= to_come
    return Survivors(kept, taking, created) if found_all else None
