"""Proofs that a pod was made by the operator, which no stranger can make. Pure.

Whoever may create pods in a job's namespace can give one the job's name, labels, owner and
annotations. So before an attempt's first pod, status gets the root of a hash tree (R. Merkle, 1987)
over one secret mark for each node rank. Each pod carries its mark and the hashes from there up to
the root: nobody can show a mark before its pod exists, and any operator can check it at any time.
A mark that is copied from a pod afterwards is of no use, since status then has the pod's uid
(`own.py`).
"""

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache
from sys import intern

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


def proofs(key: bytes, job_uid: str, attempt: int, nnodes: int) -> Proofs:
    """`Proofs`, kept for the few moments in which pods are made; 5,000 nodes take 0.7 MB."""
    return (_small if nnodes <= _FEW_NODES else _large)(key, job_uid, attempt, nnodes)


_FEW_NODES = 64
_small = lru_cache(maxsize=128)(Proofs)  # as many jobs may be between their status and their pods
_large = lru_cache(maxsize=4)(Proofs)


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
