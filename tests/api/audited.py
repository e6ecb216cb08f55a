"""What the audit log says of the operator's writes."""

from collections import Counter

from tests.cluster import operator as operators
from tests.cluster.audit import Entry


def is_refused(entry: Entry) -> bool:
    """Whether this write changed nothing for sure.

    The server has often written what it answers with 504, after its client was killed.
    """
    return 400 <= entry.code < 500


def is_creation(entry: Entry) -> bool:
    """Whether this write created a pod, or may have."""
    return entry.resource == "pods" and entry.verb == "create" and not is_refused(entry)


def made_a_pod(entry: Entry) -> bool:
    """Whether this write created a pod, and somebody was told."""
    return is_creation(entry) and entry.code == 201


def raised_before_deleted(writes: list[Entry]) -> bool:
    """Whether no pod was deleted by the operator before status.attempt had passed its own."""
    attempt: Counter[str] = Counter()
    for entry in writes:
        if entry.user != operators.USER or is_refused(entry):
            continue
        if entry.resource == "ddpjobs/status":
            attempt[entry.name] = entry.request["status"]["attempt"]
        if entry.resource == "pods" and entry.verb == "delete":
            job, of, _ = entry.name.rsplit("-", 2)
            if int(of) >= attempt[job]:
                return False
    return True
