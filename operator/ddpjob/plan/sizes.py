"""How many nodes a group has that need not have all: fewer while pods are missing. Pure.

A smaller group has the ranks from 0 on: pods of the highest ranks get those of the lost ones. Pods
that come later wait as spares do, and the group takes them in when little is lost by it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from ddpjob.api import Status
from ddpjob.plan.model import Decision, Event, PodRecord, requeue
from ddpjob.plan.own import Inputs, awaits_pods, known_ranks
from ddpjob.plan.reasons import GROUP_RESIZED
from ddpjob.plan.restart import Survivors, restart_in_place, staying
from ddpjob.plan.running import seconds_to_start
from ddpjob.plan.spares import ready_spares
from ddpjob.plan.status import with_history
from ddpjob.ranks import format_ranks
from ddpjob.times import seconds_since

# The group gets larger so soon after a save, or after the next one.
SAVED_SECONDS = 3.0
# An attempt waits so long for all its pods if the user waits for no lost one.
START_SECONDS = 30


def filled(
    inputs: Inputs, status: Status, here: Sequence[PodRecord], size: int
) -> Survivors | None:
    """Return a group of this `size` of the pods that are `here`; None if the status has no room.

    Spares get the ranks that are missing, then pods of the highest ranks, if there are more. The
    rest is to be created.
    """
    kept = [pod for pod in here if pod.rank < size]
    missing = sorted({*range(size)} - {pod.rank for pod in kept})
    beyond = sorted((pod for pod in here if pod.rank >= size), key=lambda pod: -pod.rank)
    ranks = [rank for rank in missing if rank or not inputs.job.spec.has_own_rank_0]
    taking = dict(zip(ranks, [*ready_spares(inputs, status), *beyond], strict=False))
    created = [rank for rank in missing if rank not in taking]
    has_room = status.own_pods.has_room(missing)
    return Survivors(kept, taking, created, size) if has_room else None


def are_fenced(inputs: Inputs, status: Status, group: Survivors) -> bool:
    """Whether no ranks run on unseen in pods that are left out of the next `group`.

    Each such pod has ended, is deleted in order, or its node is silent. One that is gone may have
    been deleted by force, and its processes may run on, unless it has not been created yet.
    """
    names = {pod.name for pod in (*group.kept, *group.taking.values())}
    others = [pod for pod in inputs.current if pod.name not in names]
    gone = {*range(inputs.size)} - {pod.rank for pod in inputs.current}
    if gone and (not awaits_pods(status) or gone & known_ranks(status)):
        return False
    return all(
        pod.result
        or pod.rank in inputs.observed.silent
        or not (pod.forced or pod.unreachable_since)
        for pod in others
    )


def smaller(inputs: Inputs, status: Status) -> Survivors | None:
    """Return the largest group that pods are there for; None if there is none."""
    here = [pod for pod in staying(inputs) if pod.running]
    count = min(len(here) + len(ready_spares(inputs, status)), inputs.size)
    size = inputs.job.spec.largest_group(count)
    group = filled(inputs, status, here, size) if size else None
    return None if group is None or group.created else group


def seconds_to_wait(inputs: Inputs, status: Status) -> float:
    """Return the seconds until the group goes on without pods that are missing."""
    elastic = inputs.job.spec.elastic
    if elastic is None:
        return math.inf
    at_first = START_SECONDS if status.round == 0 else 0
    return seconds_to_start(inputs, status, elastic.replace_seconds or at_first)


def go_on_with_fewer(inputs: Inputs, status: Status) -> Decision | None:
    """Return the next round of those pods of a starting group that run; None if it must wait."""
    group = None if inputs.succeeded else smaller(inputs, status)
    if group is None or len(group.kept) == inputs.size or not are_fenced(inputs, status, group):
        return None
    if not inputs.observed.confirmed:  # another operator has perhaps just given a spare this rank
        return Decision(inputs.job.status, confirm=True)
    missing = sorted({*range(inputs.size)} - {p.rank for p in inputs.current if p.running})
    what = f"the pod of node rank {format_ranks(missing)} does not run yet; "
    return _resized(inputs, status, group, what)


def larger(inputs: Inputs, status: Status) -> Survivors | None:
    """Return the group with the spares that it has room for; None if it has none, or they lack."""
    spares, here = ready_spares(inputs, status), staying(inputs)
    size = inputs.job.spec.largest_group(inputs.size + len(spares))
    if size <= inputs.size or len(here) < inputs.size or inputs.succeeded:
        return None
    return filled(inputs, status, here, size)


def grow(inputs: Inputs, decision: Decision) -> Decision:
    """Return the next round of a larger group if it is time, else `decision`."""
    status, spec, seen = decision.status, inputs.job.spec, inputs.observed.round_status
    if decision.acts or status.state != "Running" or inputs.size >= spec.nnodes:
        return decision
    group, running = larger(inputs, status), status.condition("Running")
    if group is None or running is None or spec.elastic is None:
        return decision
    wait = spec.elastic.grow_seconds - seconds_since(running.last_transition_time, inputs.now)
    if wait > 0:
        return requeue(decision, wait)
    if spec.checkpoint is not None and inputs.observed.saved_seconds > SAVED_SECONDS:
        return decision  # the agent tells of the next one
    progress = status.current_progress
    is_done = progress and progress.total_steps and progress.step >= progress.total_steps
    if is_done or seen and seen.exits:  # the last save, perhaps
        return decision
    return _resized(inputs, status, group)


def _resized(inputs: Inputs, status: Status, group: Survivors, what: str = "") -> Decision:
    """Return the next round, of a `group` of another size; `what` has made it so."""
    text = f"{what}the group goes on with {group.size} nodes of {inputs.job.spec.nnodes}"
    status = with_history(status, GROUP_RESIZED.name, inputs.now, message=text)
    begun = restart_in_place(inputs, status, GROUP_RESIZED.name, text, group)
    text = "; ".join(filter(None, (text, group.words)))
    return replace(begun, events=(Event("Restarting", text),))
