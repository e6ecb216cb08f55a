"""The model of `status.pods`: which pods of an attempt are the operator's own."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from ddpjob.api.base import Model
from ddpjob.api.values import AttemptNumber
from ddpjob.ranks import MAX_NNODES, RANKS, parse_ranks

# Rounds of an attempt that have brought new pods, as long as one of these is there.
MAX_REPLACEMENTS = 64
# Spares of an attempt, those included that have got a rank.
MAX_SPARES = 64
# Pods that have taken the places of others. Rank 0's agent gets their names in the head of a
# request, which has 8 KiB.
MAX_REPLACED = 500

NodeRank = Annotated[int, Field(ge=0, le=MAX_NNODES - 1)]


class Replacements(Model):
    """An entry has the pods that have replaced others in one round."""

    round: AttemptNumber
    """`round` is their first round, which is part of their names."""
    ranks: Annotated[str, Field(max_length=20000, pattern=RANKS)]
    """`ranks` are their node ranks, such as `3,7`."""


class Spare(Model):
    """An entry is a spare, which waits for a rank or has got one."""

    number: Annotated[int, Field(ge=1, le=999999)]
    """`number` is part of the pod's name, such as 1 in `digits-0-s1`."""
    uid: Annotated[str, Field(max_length=6, pattern="^[A-Za-z0-9_-]{6}$")] | None = None
    """`uid` holds six characters of the hash of the pod's uid."""
    rank: NodeRank | None = None
    """`rank` is the node rank that the spare has got."""
    round: AttemptNumber = 0
    """`round` is its first round with that rank."""


class Moved(Model):
    """An entry is a pod that has another node rank than in its name."""

    rank: NodeRank
    """`rank` is its node rank."""
    of: NodeRank
    """`of` is the node rank in its name."""
    round: AttemptNumber = 0
    """`round` is the round in its name."""


class OwnPods(Model):
    """An entry proves which pods of an attempt the operator itself has created."""

    attempt: AttemptNumber
    """`attempt` is the number of the attempt."""
    roots: Annotated[
        list[Annotated[str, Field(max_length=22, pattern="^[A-Za-z0-9_-]{22}$")]],
        Field(max_length=4),
    ] = []
    """`roots` are roots of hash trees. A pod's annotation leads to one of them."""
    uids: Annotated[
        str, Field(max_length=6 * MAX_NNODES, pattern=r"^([A-Za-z0-9_-]{6}|[.]{6})*$")
    ] = ""
    """`uids` holds six characters of the hash of each pod's uid, in the order of node ranks."""
    replacements: Annotated[list[Replacements], Field(max_length=MAX_REPLACEMENTS)] = []
    """`replacements` has the pods that have replaced others, the latest last."""
    spares: Annotated[list[Spare], Field(max_length=MAX_SPARES)] = []
    """`spares` has the spares, by their numbers."""
    moved: Annotated[list[Moved], Field(max_length=MAX_REPLACED)] = []
    """`moved` has the pods with another node rank than in their names."""
    size: Annotated[int, Field(ge=1, le=MAX_NNODES)] | None = None
    """`size` is the number of nodes, if it is less than `nnodes`."""

    @property
    def since(self) -> dict[int, int]:
        """Return the first round of each pod that has replaced another one, by node rank."""
        entries = self.replacements
        return {rank: e.round for e in entries for rank in parse_ranks(e.ranks, MAX_NNODES)}

    @property
    def named(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return how pods are named that have another rank than in their names.

        Keys are (node rank, first round with it), values the same as the names have them, with
        minus the number of a spare.
        """
        since = self.since if self.moved else {}
        found = {(s.rank, s.round): (-s.number, 0) for s in self.spares if s.rank is not None}
        return found | {(m.rank, since.get(m.rank, 0)): (m.of, m.round) for m in self.moved}

    def place(self, rank: int, since: int) -> tuple[int, int, int]:
        """Return (attempt, rank, since) as the name of the pod of a node rank has them."""
        return self.attempt, *self.named.get((rank, since), (rank, since))

    def has_room(self, ranks: Iterable[int]) -> bool:
        """Return whether pods of these ranks may take the places of others."""
        all_ranks = {*ranks, *self.since}
        return len(self.replacements) < MAX_REPLACEMENTS and len(all_ranks) <= MAX_REPLACED

    @property
    def latest(self) -> int:
        """Return the first round of the pods that are to be created, if some are missing."""
        return self.replacements[-1].round if self.replacements else 0
