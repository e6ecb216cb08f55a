"""How many nodes a group has that need not have all: fewer while pods are missing. Pure.

A smaller group has the ranks from 0 on: pods of the highest ranks get those of the lost ones. Pods
that come later wait as spares do, and the group takes them in when little is lost by it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddpjob.api import Status
from ddpjob.plan.model import Decision, Event, PodRecord, requeue
from ddpjob.plan.own import Inputs
from ddpjob.plan.reasons import GROUP_RESIZED
from ddpjob.plan.restart import restart_in_place, staying
from ddpjob.plan.running import seconds_to_start
from ddpjob.plan.spares import ready_spares
from ddpjob.plan.status import with_history
from ddpjob.ranks import format_ranks
from ddpjob.times import seconds_since

# The group gets larger so soon after a save, or after the next one.
SAVED_SECONDS = 3.0
# An attempt waits so long for all its pods if the user waits for no lost one.
START_SECONDS = 30


@dataclass(frozen=True)
class Survivors:
    """The pods that go on when others are lost."""

    kept: Sequence[PodRecord]
    taking: Mapping[int, PodRecord]
    """Spares, and pods of ranks that are no more, by the ranks that they get."""
    created: Sequence[int]
    """Node ranks whose pods are to be created."""
    size: int
    """The number of nodes."""

    @property
    def words(self) -> str:
        """What becomes of the lost pods."""
        words = [f"{_called(pod)} gets node rank {rank}" for rank, pod in self.taking.items()]
        if self.created:
            words.append(f"the pod of node rank {format_ranks(self.created)} is replaced")
        return ", ".join(words)


def _called(pod: PodRecord) -> str:
    return f"spare {pod.name}" if pod.rank < 0 else f"pod {pod.name}"


def smaller(inputs: Inputs, status: Status) -> Survivors | None:
    """Return the largest group that pods are there for; None if there is none.

    The pods with the highest ranks get those of the missing ones.
    """
    spec = inputs.job.spec
    here = sorted((pod for pod in staying(inputs) if pod.running), key=lambda pod: pod.rank)
    spares = ready_spares(inputs, status)
    size = spec.largest_group(min(len(here) + len(spares), inputs.size))
    kept = [pod for pod in here if pod.rank < size]
    missing = sorted({*range(size)} - {pod.rank for pod in kept})
    others = [*spares, *reversed(here[len(kept) :])]
    taking = dict(zip(missing, others, strict=False))
    if not kept or 0 in taking and spec.has_own_rank_0 or not status.own_pods.has_room(taking):
        return None
    return Survivors(kept, taking, (), size)


def seconds_to_wait(inputs: Inputs, status: Status) -> float:
    """Return the seconds until the group goes on without pods that are missing."""
    elastic = inputs.job.spec.elastic
    if elastic is None:
        return math.inf
    at_first = START_SECONDS if status.round == 0 else 0
    return seconds_to_start(inputs, status, elastic.replace_seconds or at_first)


def go_on_with_fewer(inputs: Inputs, status: Status) -> Decision | None:
    """Return the next round of those pods of a starting group that run; None if it must wait."""
    found = None if inputs.succeeded else smaller(inputs, status)
    if found is None or len(found.kept) == inputs.size:
        return None
    missing = sorted({*range(inputs.size)} - {p.rank for p in inputs.current if p.running})
    what = f"the pod of node rank {format_ranks(missing)} does not run yet"
    text = f"{what}; the group goes on with {found.size} nodes of {inputs.job.spec.nnodes}"
    status = with_history(status, GROUP_RESIZED.name, inputs.now)
    groups = found.kept, found.taking, found.size
    begun = restart_in_place(inputs, status, GROUP_RESIZED.name, text, *groups)
    text = "; ".join(filter(None, (text, found.words)))
    return replace(begun, events=(Event("Restarting", text),))


def larger(inputs: Inputs, status: Status) -> Survivors | None:
    """Return the group with the spares that it has room for; None if it has none, or they lack."""
    spares, here = ready_spares(inputs, status), staying(inputs)
    size = inputs.job.spec.largest_group(inputs.size + len(spares))
    if size <= inputs.size or len(here) < inputs.size or inputs.succeeded:
        return None
    taking = dict(zip(range(inputs.size, size), spares, strict=False))
    return Survivors(here, taking, (), size) if status.own_pods.has_room(taking) else None


def grow(inputs: Inputs, decision: Decision) -> Decision:
    """Return the next round of a larger group if it is time, else `decision`."""
    status, spec = decision.status, inputs.job.spec
    if decision.acts or status.state != "Running" or inputs.size >= spec.nnodes:
        return decision
    found, running = larger(inputs, status), status.condition("Running")
    if found is None or running is None or spec.elastic is None:
        return decision
    wait = spec.elastic.grow_seconds - seconds_since(running.last_transition_time, inputs.now)
    if wait > 0:
        return requeue(decision, wait)
    if spec.checkpoint is not None and inputs.observed.saved_seconds > SAVED_SECONDS:
        return decision  # the agent tells of the next one
    text = f"the group goes on with {found.size} nodes of {spec.nnodes}; {found.words}"
    status = with_history(status, GROUP_RESIZED.name, inputs.now)
    groups = found.kept, found.taking, found.size
    begun = restart_in_place(inputs, status, GROUP_RESIZED.name, text, *groups)
    return replace(begun, events=(Event("Restarting", text),))
