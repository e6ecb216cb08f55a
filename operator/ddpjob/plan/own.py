"""Which pods of a job are its own: made by the operator, and not by somebody else for it. Pure.

A pod of somebody else's neither succeeds nor fails a rank, whatever its name and labels say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ddpjob.api import DDPJob, OwnPods, Status
from ddpjob.plan.observed import PodRecord
from ddpjob.plan.proof import PRINT

_NONE = "." * PRINT
_NOBODYS: Mapping[int, str] = MappingProxyType({})
MAX_ROOTS = 4  # of operators that made pods of one attempt; more than two is a crash loop
BEGUN = ("Starting", "Running", "Restarting")


@dataclass(frozen=True)
class Pods:
    """All pods that name a job as their controller, by what they are to it."""

    current: list[PodRecord]
    """Its own, of its attempt: the only ones that can succeed or fail."""
    older: list[PodRecord]
    """Of earlier attempts, whoever made them: what lives of them is waited for."""
    ahead: list[PodRecord]
    """Of attempts that it has not begun."""
    strays: list[PodRecord]
    """Named like pods of its attempt, and somebody else's."""

    @property
    def head(self) -> str:
        """Uid of rank 0's pod, if its attempt has one of its own."""
        return next((pod.uid for pod in self.current if pod.rank == 0), "")


def sort_pods(
    job: DDPJob, status: Status, pods: Iterable[PodRecord], made: Mapping[int, str] = _NOBODYS
) -> Pods:
    """`pods` by what they are to the job. Those of other namespaces are nothing to it.

    `made` has what is known, beyond status, of the uids of this attempt's pods.
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


def is_own(status: Status, pod: PodRecord) -> bool:
    """Whether the operator has made this pod of its job.

    A job of an earlier version, which kept nothing of this, is taken as it is found.
    """
    return _owns(status, _table(status, pod.attempt), pod)


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
    """`status`, with the uids of the pods of its attempt, which are its own."""
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
    """Node ranks of this attempt whose pods have been seen: no other pod can be theirs."""
    table = _table(status, status.attempt)
    uids = table.uids if table else ""
    return {i // PRINT for i in range(0, len(uids), PRINT) if uids[i : i + PRINT] != _NONE}


def with_root(status: Status, root: str) -> Status:
    """`status`, with what proves pods of its attempt that are made from now on."""
    table = _table(status, status.attempt) or OwnPods(attempt=status.attempt)
    if root in table.roots:
        return status
    return _with_table(status, table, {"roots": [*table.roots, root][-MAX_ROOTS:]})


def _table(status: Status, attempt: int) -> OwnPods | None:
    return next((table for table in status.pods if table.attempt == attempt), None)


def _with_table(status: Status, table: OwnPods, update: dict[str, object]) -> Status:
    """`status` with this table changed, beside that of the attempt before, whose pods end."""
    before = [each for each in status.pods if each.attempt < table.attempt][-1:]
    return status.model_copy(update={"pods": [*before, table.model_copy(update=update)]})
