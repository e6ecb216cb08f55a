"""Finds which pods of a job the operator has made, and which somebody else has. Pure.

A stray, a pod that somebody else has made, neither succeeds nor fails a rank, whatever its name and
labels are. Whoever may create pods in a job's namespace can give one the job's name, labels, owner
and annotations. So before an attempt's first pod, status gets the root of a hash tree (R. Merkle,
1987) over one secret mark for each node rank. Each pod carries its mark and the hashes from there
up to the root: nobody can show a mark before its pod exists, and any operator can check it at any
time. A mark that is copied from a pod afterwards is of no use, since status then has the pod's uid.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern
from types import MappingProxyType

from ddpjob import names
from ddpjob.api import DDPJob, Moved, OwnPods, Replacements, Spare, Status
from ddpjob.plan.model import Made, Observed, Order, PodRecord, RoundStatus
from ddpjob.plan.status import is_suspending
from ddpjob.ranks import MAX_NNODES, format_ranks, parse_ranks

_SIZE = 16  # bytes of a mark and of a hash: guessing one takes 2^128 tries, not 5,000 pods
_MAX_LEVELS = 13  # 2^13 is more than the nodes that a job may have
PRINT = 6  # characters of a uid's print: 2^36 pods to create, to meet one by chance


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()[:_SIZE]


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Proofs:
    """The marks of pods by an operator with this key, and the tree over them.

    They are those of an attempt's beginning, or of the round in which pods have replaced others.
    """

    def __init__(self, key: bytes, job_uid: str, attempt: int, since: int, nnodes: int) -> None:
        """`key` is the process's own secret, of any length."""
        places = (f"{job_uid}/{attempt}.{since}/{rank}".encode() for rank in range(nnodes))
        self._marks = [hmac.digest(key, place, "sha256")[:_SIZE] for place in places]
        level = [_hash(b"leaf", mark) for mark in self._marks]
        self._levels = [level]
        while len(level) > 1:
            level = [*level, bytes(_SIZE)][: len(level) + len(level) % 2]
            self._levels[-1] = level
            level = [_hash(b"node", a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
            self._levels.append(level)

    @property
    def root(self) -> str:
        """What status holds: 22 characters."""
        return _text(self._levels[-1][0])

    def of(self, rank: int) -> str:
        """What the pod of this node rank carries: at most 299 characters."""
        beside = [level[(rank >> n) ^ 1] for n, level in enumerate(self._levels[:-1])]
        return _text(b"".join([self._marks[rank], *beside]))


@lru_cache(maxsize=16)  # as many jobs have a worker between their status and their pods
def proofs(key: bytes, job_uid: str, attempt: int, since: int, nnodes: int) -> Proofs:
    """`Proofs`, kept for the few moments in which pods are made; 5,000 nodes take 0.7 MB."""
    return Proofs(key, job_uid, attempt, since, nnodes)


def root_of(proof: str, rank: int) -> str:
    """The root to which `proof` leads from this rank; empty where it is no proof."""
    return _root_of(proof, rank) if len(proof) <= (_MAX_LEVELS + 1) * _SIZE * 2 else ""


@lru_cache(maxsize=1024)  # a pod that starts is read four times within moments
def _root_of(proof: str, rank: int) -> str:
    try:
        content = base64.b64decode(proof + "=" * (-len(proof) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return ""
    parts = [content[i : i + _SIZE] for i in range(0, len(content), _SIZE)]
    if not parts or len(parts[-1]) < _SIZE or rank >> (len(parts) - 1):
        return ""
    found = _hash(b"leaf", parts[0])
    for beside in parts[1:]:
        found = _hash(b"node", beside, found) if rank & 1 else _hash(b"node", found, beside)
        rank >>= 1
    return intern(_text(found))  # all pods of an attempt have the same


def print_of(uid: str) -> str:
    """The six characters by which status knows a pod's uid."""
    return _text(hashlib.sha256(uid.encode()).digest())[:PRINT]


_NONE = "." * PRINT
_NOBODYS: Mapping[int, str] = MappingProxyType({})
# Operators that made pods of one attempt; more than two is a crash loop.
MAX_ROOTS = 4
BEGUN = ("Starting", "Running", "Restarting", "Idle")


@dataclass(frozen=True)
class Pods:
    """All pods that name a job as their controller, sorted."""

    current: list[PodRecord]
    """The job's own pods of its attempt. Only these can succeed or fail."""
    older: list[PodRecord]
    """Pods of earlier attempts, those that have been replaced, and those of node ranks that the
    group has no more, whoever made them.

    The next attempt, or round, waits for the live ones."""
    ahead: list[PodRecord]
    """Pods of attempts, or replacements of rounds, that the job has not begun."""
    strays: list[PodRecord]
    """Pods that are named like pods of its attempt, but that somebody else has made, or that are
    spares no more."""
    spares: list[PodRecord] = field(default_factory=list)
    """The job's own spares of its attempt that have no rank."""

    @property
    def head(self) -> str:
        """Rank 0's own pod of the attempt, as a uid; empty without one."""
        return next((pod.uid for pod in self.current if pod.rank == 0), "")


def sort_pods(
    job: DDPJob, status: Status, pods: Iterable[PodRecord], made: Mapping[int, str] = _NOBODYS
) -> Pods:
    """Sort `pods`, spares by the ranks that they have got. Pods of other namespaces are left out.

    `made` has `uid_print` of this attempt's pods that the status does not have yet.
    """
    found, table = Pods([], [], [], []), _table(status, status.attempt)
    attempt, size = status.attempt, size_of(job, status)
    since = table.since if table else {}
    mine = (p for p in pods if p.owner_uid == job.uid and p.namespace == job.namespace)
    for pod in placed(status, mine):
        its, here = (pod.attempt, pod.since), (attempt, since.get(pod.rank, 0))
        has_been = pod.attempt == attempt and pod.since <= status.round
        if its < here or has_been and size <= pod.rank < job.spec.nnodes:
            found.older.append(pod)
        elif its > here:
            found.ahead.append(pod)
        elif pod.rank < 0:
            (found.spares if _owns(status, table, pod, made) else found.strays).append(pod)
        elif pod.rank < size and _owns(status, table, pod, made):
            found.current.append(pod)
        else:
            found.strays.append(pod)
    return found


def placed(status: Status, pods: Iterable[PodRecord]) -> Iterator[PodRecord]:
    """Yield `pods` with the node ranks that they have got, each as it is if it has its name's."""
    ranks = {table.attempt: {v: k for k, v in table.named.items()} for table in status.pods}
    for pod in pods:
        got = ranks.get(pod.attempt, {}).get((pod.rank, pod.since))
        yield pod if got is None else replace(pod, rank=got[0], since=got[1])


def size_of(job: DDPJob, status: Status) -> int:
    """Return the number of nodes of the group, which may be smaller than the job wants.

    While the job is being suspended that is the group which ends.
    """
    before = _table(status, status.attempt - 1) if is_suspending(status) else None
    return (before or status.own_pods).size or job.spec.nnodes


def is_own(status: Status, pod: PodRecord, made: Mapping[int, str] = _NOBODYS) -> bool:
    """Whether the operator has made this pod; `made` as in `sort_pods`, of the pod's attempt.

    The pod has the rank that it has got.

    A job that an earlier version began has no `status.pods`, so all its pods count as its own.
    """
    return _owns(status, _table(status, pod.attempt), pod, made)


def absent(status: Status, pods: Iterable[PodRecord]) -> set[tuple[int, int, int]]:
    """Return (attempt, rank, since) of pods that the status knows and that are not among `pods`.

    Of a group that runs: its own. Of one that starts anew: also those of the attempt before.
    """
    if status.state not in BEGUN:
        return set()
    done = parse_ranks(status.succeeded_ranks, MAX_NNODES)
    known = set[tuple[int, int, int]]()
    for table in status.pods:
        if table.attempt == status.attempt or status.state == "Restarting":
            since, ranks, named = table.since, _ranks(table), table.named
            ranks -= done if table.attempt == status.attempt else set()
            here = {(rank, since.get(rank, 0)) for rank in ranks}
            known |= {(table.attempt, *named.get(place, place)) for place in here}
    return known - {(pod.attempt, pod.rank, pod.since) for pod in pods}


def may_be_own(job: DDPJob, places: Iterable[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """Return those of these (attempt, rank, since) of which the operator may have made a pod."""
    attempts = {job.status.attempt, *(table.attempt for table in job.status.pods)}
    return {place for place in places if place[0] in attempts and place[1] < job.spec.nnodes}


def _owns(
    status: Status, table: OwnPods | None, pod: PodRecord, made: Mapping[int, str] = _NOBODYS
) -> bool:
    if table is None:
        return not status.pods and status.state in BEGUN
    if pod.rank < 0:
        spare = next((each for each in table.spares if each.number == -pod.rank), None)
        is_new = pod.attempt == status.attempt
        known = spare and (spare.uid or (made.get(pod.rank) if is_new else None))
        return known == pod.uid_print
    if _has_uid(table, pod):
        return True
    known = table.uids[PRINT * pod.rank : PRINT * (pod.rank + 1)]
    if known in ("", _NONE):
        known = made.get(pod.rank, "")
    return known == pod.uid_print if known else pod.root in table.roots


def _has_uid(table: OwnPods, pod: PodRecord) -> bool:
    return table.uids.startswith(pod.uid_print, PRINT * pod.rank)


def with_own(status: Status, own: Iterable[PodRecord], spares: Iterable[PodRecord] = ()) -> Status:
    """Return `status` with the uids of its attempt's own pods, and of its spares."""
    table = _table(status, status.attempt)
    if table is None and (status.pods or status.state not in BEGUN):
        return status
    table = table or OwnPods(attempt=status.attempt)
    new = [pod for pod in own if not _has_uid(table, pod)]
    prints = {-pod.rank: pod.uid_print for pod in spares}
    if any(not entry.uid and entry.number in prints for entry in table.spares):
        seen = [e.model_copy(update={"uid": prints.get(e.number, e.uid)}) for e in table.spares]
        table = table.model_copy(update={"spares": seen})
        status = _with_table(status, table, {})
    if not new:
        return status
    known = [table.uids[i : i + PRINT] for i in range(0, len(table.uids), PRINT)]
    for pod in new:
        known += [_NONE] * (pod.rank + 1 - len(known))
        known[pod.rank] = pod.uid_print
    return _with_table(status, table, {"uids": "".join(known)})


def order_of(job: DDPJob, pods: Pods, observed: Observed, *, ends: bool) -> Order:
    """Return what the group is told.

    A round is not ordered while ranks of one before may live in a pod that is replaced: the last
    order stands, as this process has given it or as rank 0's agent knows it. Agents say sooner than
    their kubelets that none of their processes lives.
    """
    status, seen = job.status, observed.round_status
    table, at = status.own_pods, {pod.rank: pod for pod in pods.current}
    number, since = status.round, table.since
    if seen is None or seen.attempt != status.attempt:
        seen = RoundStatus(status.attempt, 0, running=False)
    here = [pod for pod in pods.older if pod.live and pod.attempt == status.attempt]
    if any(pod.uid_print not in seen.dead for pod in here):
        number = min(number, max(observed.ordered, seen.round))
    held = number < status.round or status.state == "Idle"
    prints = list[str]()
    for rank in sorted(since):
        known = table.uids[PRINT * rank : PRINT * (rank + 1)].strip(".")
        found = at[rank].uid_print if rank in at else ""
        prints.append(f"{rank}:{known or found}")
    silent = {node.name for node in status.silent_nodes}
    leaving = [p for p in here if p.node not in silent and not p.unreachable_since]
    followers = [*pods.current, *pods.spares, *leaving] if 0 in since else []
    members = frozenset(pod.uid for pod in followers)
    size = size_of(job, status) if job.spec.elastic else 0
    program = status.ordered_program
    return Order(number, ends, made_of(status), ",".join(prints), members, size, program, held)


def made_of(status: Status) -> Made:
    """Return the `Made` of the pods that are to be created, if some are missing."""
    return status.attempt, status.own_pods.latest


def awaits_pods(status: Status) -> bool:
    """Whether the round begins with new pods. A restart in place waits for none."""
    return status.round == status.own_pods.latest


def name_of(job: DDPJob, status: Status, rank: int) -> str:
    """Return the name that the own pod of a node rank, or a spare, has or is to have."""
    own = status.own_pods
    return names.pod_name(job.name, *own.place(rank, own.since.get(rank, 0)))


def known_ranks(status: Status) -> set[int]:
    """Return the node ranks whose pods have been seen: no other pod can be theirs."""
    table = _table(status, status.attempt)
    return _ranks(table) if table else set()


def _ranks(table: OwnPods) -> set[int]:
    """Return the node ranks whose uids are in the table."""
    starts = range(0, len(table.uids), PRINT)
    return {i // PRINT for i in starts if table.uids[i : i + PRINT] != _NONE}


def with_root(status: Status, root: str) -> Status:
    """Return `status` with the root that proves pods of its attempt from now on."""
    table = _table(status, status.attempt) or OwnPods(attempt=status.attempt)
    if root in table.roots:
        return status
    return _with_table(status, table, {"roots": [*table.roots, root][-MAX_ROOTS:]})


def with_new_pods(
    job: DDPJob,
    status: Status,
    kept: Iterable[PodRecord],
    taking: Mapping[int, PodRecord],
    nnodes: int,
) -> Status:
    """Return `status`, whose round has just begun, with new pods for all but the `kept` ones.

    `taking` has those of the `nnodes` that are there already, by their new ranks: spares, and pods
    of ranks that are no more. The others are to be made. Copies of older pods' marks prove nothing
    any more: the uids of those that stay are known.
    """
    table, stay = status.own_pods, {pod.rank: pod for pod in kept}
    names_of, every = table.named, {**stay, **taking}
    places = {rank: (pod.rank, pod.since) for rank, pod in every.items()}
    named = {rank: names_of.get(place, place) for rank, place in places.items()}
    since = {rank: pod.since for rank, pod in stay.items() if pod.since}
    since |= {rank: status.round for rank in range(nnodes) if rank not in stay}
    rounds = sorted({*since.values()})
    known = {**taking, **stay}
    got = {-named[rank][0]: {"rank": rank, "round": status.round} for rank in taking}
    moved = [Moved(rank=r, of=of, round=n) for r, (of, n) in sorted(named.items()) if 0 <= of != r]
    update: dict[str, object] = {
        "roots": [],
        "uids": "".join(known[r].uid_print if r in known else _NONE for r in range(nnodes)),
        "spares": [e.model_copy(update=got.get(e.number, {})) for e in table.spares],
        "replacements": [
            Replacements(round=n, ranks=format_ranks(r for r in since if since[r] == n))
            for n in rounds
        ],
        "moved": moved,
        "size": nnodes if nnodes < job.spec.nnodes else None,
    }
    return _with_table(status, table, update)


def with_spares(status: Status, spares: Sequence[Spare]) -> Status:
    """Return `status` with these spares."""
    return _with_table(status, status.own_pods, {"spares": [*spares]})


def _table(status: Status, attempt: int) -> OwnPods | None:
    return next((table for table in status.pods if table.attempt == attempt), None)


def _with_table(status: Status, table: OwnPods, update: dict[str, object]) -> Status:
    """Return `status` with this table changed. The table before it stays while its pods end."""
    before = [each for each in status.pods if each.attempt < table.attempt][-1:]
    return status.model_copy(update={"pods": [*before, table.model_copy(update=update)]})


@dataclass(frozen=True)
class Inputs:
    """The inputs of one decision. The status, which a decision changes, is passed beside it."""

    job: DDPJob
    pods: Pods
    succeeded: Set[int]
    """Node ranks of the attempt that have ended well, or whose failure a rule ignores."""
    observed: Observed
    now: float
    """Unix time."""

    @property
    def current(self) -> Sequence[PodRecord]:
        """The job's own pods of its attempt."""
        return self.pods.current

    @property
    def size(self) -> int:
        """The number of nodes of the group."""
        return size_of(self.job, self.job.status)

    def rank_of(self, name: str | None) -> int | None:
        """Return the node rank of the own pod with this name."""
        return next((pod.rank for pod in self.current if pod.name == name), None)
