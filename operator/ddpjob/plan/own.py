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
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from types import MappingProxyType

from ddpjob.api import DDPJob, OwnPods, Status
from ddpjob.plan.model import Observed, PodRecord
from ddpjob.ranks import MAX_NNODES, parse_ranks

_SIZE = 16  # bytes of a mark and of a hash: guessing one takes 2^128 tries, not 5,000 pods
_MAX_LEVELS = 13  # 2^13 is more than the nodes that a job may have
PRINT = 6  # characters of a uid's print: 2^36 pods to create, to meet one by chance


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()[:_SIZE]


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Proofs:
    """The marks of one attempt by an operator with this key, and the tree over them."""

    def __init__(self, key: bytes, job_uid: str, attempt: int, nnodes: int) -> None:
        """`key` is the process's own secret, of any length."""
        places = (f"{job_uid}/{attempt}/{rank}".encode() for rank in range(nnodes))
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
def proofs(key: bytes, job_uid: str, attempt: int, nnodes: int) -> Proofs:
    """`Proofs`, kept for the few moments in which pods are made; 5,000 nodes take 0.7 MB."""
    return Proofs(key, job_uid, attempt, nnodes)


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
BEGUN = ("Starting", "Running", "Restarting")


@dataclass(frozen=True)
class Pods:
    """All pods that name a job as their controller, sorted."""

    current: list[PodRecord]
    """The job's own pods of its attempt. Only these can succeed or fail."""
    older: list[PodRecord]
    """Pods of earlier attempts, whoever made them. The next attempt waits for the live ones."""
    ahead: list[PodRecord]
    """Pods of attempts that the job has not begun."""
    strays: list[PodRecord]
    """Pods that are named like pods of its attempt, but that somebody else has made."""

    @property
    def head(self) -> str:
        """Rank 0's own pod of the attempt, as a uid; empty without one."""
        return next((pod.uid for pod in self.current if pod.rank == 0), "")


def sort_pods(
    job: DDPJob, status: Status, pods: Iterable[PodRecord], made: Mapping[int, str] = _NOBODYS
) -> Pods:
    """Sort `pods`. Pods of other namespaces are left out.

    `made` has `uid_print` of this attempt's pods that the status does not have yet.
    """
    found, table = Pods([], [], [], []), _table(status, status.attempt)
    namespace, uid, attempt, nnodes = job.namespace, job.uid, status.attempt, job.spec.nnodes
    for pod in pods:
        if pod.owner_uid != uid or pod.namespace != namespace:
            continue
        if pod.attempt != attempt:
            (found.older if pod.attempt < attempt else found.ahead).append(pod)
        elif pod.rank < nnodes and _owns(status, table, pod, made):
            found.current.append(pod)
        else:
            found.strays.append(pod)
    return found


def is_own(status: Status, pod: PodRecord, made: Mapping[int, str] = _NOBODYS) -> bool:
    """Whether the operator has made this pod; `made` as in `sort_pods`, of the pod's attempt.

    A job that an earlier version began has no `status.pods`, so all its pods count as its own.
    """
    return _owns(status, _table(status, pod.attempt), pod, made)


def absent(status: Status, pods: Iterable[PodRecord]) -> set[tuple[int, int]]:
    """Return (attempt, rank) of pods that the status knows and that are not among `pods`.

    Of a group that runs: its own. Of one that starts anew: also those of the attempt before.
    """
    if status.state not in BEGUN:
        return set()
    known = {
        (table.attempt, rank)
        for table in status.pods
        if table.attempt == status.attempt or status.state == "Restarting"
        for rank in _ranks(table)
    }
    done = {(status.attempt, rank) for rank in parse_ranks(status.succeeded_ranks, MAX_NNODES)}
    return known - done - {(pod.attempt, pod.rank) for pod in pods}


def may_be_own(job: DDPJob, places: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return those of these (attempt, rank) of which the operator may have made a pod that runs."""
    attempts = {job.status.attempt, *(table.attempt for table in job.status.pods)}
    return {place for place in places if place[0] in attempts and place[1] < job.spec.nnodes}


def _owns(
    status: Status, table: OwnPods | None, pod: PodRecord, made: Mapping[int, str] = _NOBODYS
) -> bool:
    if table is None:
        return not status.pods and status.state in BEGUN
    if _has_uid(table, pod):
        return True
    known = table.uids[PRINT * pod.rank : PRINT * (pod.rank + 1)]
    if known in ("", _NONE):
        known = made.get(pod.rank, "")
    return known == pod.uid_print if known else pod.root in table.roots


def _has_uid(table: OwnPods, pod: PodRecord) -> bool:
    return table.uids.startswith(pod.uid_print, PRINT * pod.rank)


def with_own(status: Status, own: Iterable[PodRecord]) -> Status:
    """Return `status` with the uids of its attempt's own pods."""
    table = _table(status, status.attempt)
    if table is None and (status.pods or status.state not in BEGUN):
        return status
    table = table or OwnPods(attempt=status.attempt)
    new = [pod for pod in own if not _has_uid(table, pod)]
    if not new:
        return status
    known = [table.uids[i : i + PRINT] for i in range(0, len(table.uids), PRINT)]
    for pod in new:
        known += [_NONE] * (pod.rank + 1 - len(known))
        known[pod.rank] = pod.uid_print
    return _with_table(status, table, {"uids": "".join(known)})


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
