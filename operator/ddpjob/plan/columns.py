"""What users see of a decision's status: the columns of `kubectl get`, and Events. Pure.

The columns follow from the rest of the status, and are written with it. An Event follows from two
statuses, the stored one and the one that is to follow. So it is recorded once the latter is
written, and never for a pod of its own.
"""

import math
from collections.abc import Sequence

from ddpjob import api
from ddpjob.api import Failure, Status, Summary
from ddpjob.api.values import MAX_COLUMN
from ddpjob.plan.model import Event, PodRecord
from ddpjob.plan.podrecord import first_stuck, slowest
from ddpjob.plan.reasons import (
    CREATE_REFUSED,
    IDLE,
    INVALID,
    NAME_TAKEN,
    QUEUED,
    RESUMED,
    STARTING,
    SUSPENDING,
    UNSCHEDULABLE,
)
from ddpjob.plan.termination import MAX_MESSAGE
from ddpjob.times import duration

# Characters of a failure's reason and place that leave room for its message.
MAX_PLACE = 80
# States into which a failure may have brought a job that has not failed.
_AFTER = ("Restarting", "Idle")
# Columns that only `-o wide` shows. They wait for the next write.
_WIDE = ("pod", "node", "attempt")


def with_columns(old: Status, new: Status, current: Sequence[PodRecord], now: float) -> Status:
    """Return `new`, which is to follow `old`, with its columns.

    `current` are the pods of the attempt of `old`. A finished job keeps its words as long as
    nothing else is to be written: of its status only a part may be known.
    """
    new = new.model_copy(update={"summary": new.summary.model_copy(update=_figures(new))})
    if old.state in api.FINISHED and new == old:
        return new
    pod, node = _place(new, current if new.attempt == old.attempt else (), now)
    words = {
        "reason": _reason(new),
        "pod": pod,
        "node": node,
        "attempt": f"{new.attempt}.{new.round}",
    }
    # Made anew, since whatever is quoted has to be cut and made printable.
    summary = Summary.model_validate({**new.summary.model_dump(), **words})
    shown = new.model_copy(update={"summary": summary})
    kept = {name: getattr(old.summary, name) for name in _WIDE}
    if shown.model_copy(update={"summary": summary.model_copy(update=kept)}) == old:
        return old
    return shown


def _figures(status: Status) -> dict[str, str | None]:
    nodes, progress = status.nodes, status.progress
    step = loss = eta = None
    if progress:
        total = progress.total_steps
        step = f"{progress.step}/{total}" if total else str(progress.step)
        loss = progress.loss
        if progress.eta_seconds is not None and status.state == "Running":
            eta = duration(progress.eta_seconds)
    up = f"{nodes.running + nodes.succeeded}/{nodes.desired}" if nodes.desired else None
    if up and nodes.spares is not None:
        up += f"+{nodes.spares}"
    return {"nodes": up, "step": step, "loss": loss, "eta": eta}


def _reason(status: Status) -> str | None:
    """Return why the job is not simply running, or has failed; None if all is well."""
    if status.state in ("Succeeded", "Suspended"):
        return None
    failed, suspended = status.condition("Failed"), status.condition("Suspended")
    if status.state == "Failed" and failed is not None:
        found = _cause(status)
        why = failed.message if found is None else words_of_failure(found)
        # Such as LaunchFailed, which is the reason of the failure too.
        return why if why.startswith(failed.reason) else f"{failed.reason}: {why}"
    if suspended is not None and suspended.reason == SUSPENDING.name:
        return f"{suspended.reason}: {suspended.message}"
    accepted, running = status.condition("Accepted"), status.condition("Running")
    if accepted is not None and accepted.status == "False":
        return f"{accepted.reason}: {accepted.message}"
    if running is None or running.status == "True":
        return None
    if running.reason in (STARTING.name, IDLE.name):
        return None
    if (found := _cause(status)) is not None:
        return words_of_failure(found)
    words = _without_pod(running.message)
    if running.reason not in (UNSCHEDULABLE.name, CREATE_REFUSED.name, QUEUED.name):
        words = _with_its_end(words, MAX_COLUMN - len(f"{running.reason}: "))
    return f"{running.reason}: {words}"


def _with_its_end(words: str, room: int) -> str:
    """Return a kubelet's sentence in so many characters. Its cause stands at its end."""
    if len(words) <= room:
        return words
    kept = words[1 - room :]
    return "…" + (kept.partition(": ")[2] or kept)


def words_of_failure(found: Failure) -> str:
    """Return a failure in one line: reason, rank, pod, node and message."""
    what = found.reason if found.rank is None else f"{found.reason} r{found.rank}"
    where = f"{found.pod} on {found.node}" if found.pod and found.node else found.pod
    if where and len(what) + len(where) <= MAX_PLACE:
        what = f"{what} ({where})"
    return f"{what}: {found.message}" if found.message else what


def _cause(status: Status) -> Failure | None:
    """Return the failure that has brought the job into its state, if it was one.

    A round that has ended otherwise since, such as by a deadline, has an entry of its own.
    """
    found, last = status.failure, status.history[-1] if status.history else None
    if found is None or last is None or (found.reason, found.pod) != (last.reason, last.pod):
        return None
    running = status.condition("Running")
    shows = running is not None and running.status == "False" and running.reason == found.reason
    return found if status.state == "Failed" or status.state in _AFTER and shows else None


def _place(
    status: Status, current: Sequence[PodRecord], now: float
) -> tuple[str | None, str | None]:
    """Return the pod to look at, and its node: that of the reason, or else rank 0's."""
    if status.state in (None, "Pending", "Queued", "Suspended"):
        return None, None
    if (found := _cause(status)) is not None:
        return found.pod, found.node
    running = status.condition("Running")
    pod = first_stuck(current) or slowest(current, now)
    if pod is None or running is None or running.reason != pod.reason:
        pod = next((pod for pod in current if pod.rank == 0), None)
    if pod is None:  # it ended well, and somebody has deleted it
        same = status.summary.attempt == f"{status.attempt}.{status.round}"
        return (status.summary.pod, status.summary.node) if same else (None, None)
    return pod.name, pod.node or None


def _without_pod(message: str) -> str:
    """Return the words of a scheduler or kubelet without the pod, which has its own column."""
    pod, _, words = message.partition(": ")
    return words if pod.startswith("pod ") and pod.count(" ") == 1 and words else message


_REFUSALS = (INVALID.name, NAME_TAKEN.name, CREATE_REFUSED.name)


def news(before: Status, after: Status) -> tuple[Event, ...]:
    """Return the Events of the change from one status to the next."""
    found = (
        _resumed(before, after),
        _queued(before, after),
        _admitted(before, after),
        _refused(before, after),
        _unschedulable(before, after),
        _started(before, after),
        _first_step(before, after),
        _loss(before, after),
    )
    return tuple(event for event in found if event)


def _resumed(before: Status, after: Status) -> Event | None:
    if before.state != "Suspended" or after.state != "Starting":
        return None
    return Event(RESUMED.name, "spec.suspend is false")


def _queued(before: Status, after: Status) -> Event | None:
    """Return an Event once the job waits for Kueue, which is told once an attempt."""
    waits = after.condition("Running")
    if before.state == "Queued" or after.state != "Queued" or waits is None:
        return None
    return Event(QUEUED.name, waits.message[:MAX_MESSAGE], once=True)


def _admitted(before: Status, after: Status) -> Event | None:
    if after.admission is None or before.admission == after.admission:
        return None
    return Event(
        "Admitted", f"Kueue has admitted it by ClusterQueue {after.admission.cluster_queue}"
    )


def _refused(before: Status, after: Status) -> Event | None:
    """Return an Event once nothing can be created. Another message of that reason is no news."""
    for kind in ("Accepted", "Running"):
        old, new = before.condition(kind), after.condition(kind)
        if new and new.reason in _REFUSALS and (old is None or old.reason != new.reason):
            return Event(new.reason, new.message[:MAX_MESSAGE], warning=True)
    return None


def _unschedulable(before: Status, after: Status) -> Event | None:
    """Return an Event once no node has room, which is told once an attempt."""
    old, new = before.condition("Running"), after.condition("Running")
    name = UNSCHEDULABLE.name
    if new is None or new.reason != name or old is not None and old.reason == name:
        return None
    return Event(name, new.message[:MAX_MESSAGE], warning=True, once=True)


def _started(before: Status, after: Status) -> Event | None:
    """Return an Event once all nodes of an attempt run. A round in place has none."""
    if before.state == "Running" or (after.state, after.round) != ("Running", 0):
        return None
    return Event("Started", f"{after.nodes.desired} of {after.nodes.desired} nodes run")


def _first_step(before: Status, after: Status) -> Event | None:
    """Return an Event with the first step of an attempt that was seen."""
    old, new = before.progress, after.progress
    if new is None or new.attempt is None or new.first_step is None:
        return None
    if old is not None and old.attempt in (None, new.attempt):
        return None
    words = f"attempt {new.attempt} makes steps; the first one that was seen is {new.first_step}"
    return Event("FirstStep", words)


def _loss(before: Status, after: Status) -> Event | None:
    """Return an Event once the loss has become `nan` or `inf`.

    The training goes on, because with a scaled loss it may be so for one step.
    """
    losses = (status.progress.loss if status.progress else None for status in (before, after))
    was, loss = (None if text is None else float(text) for text in losses)
    if loss is None or math.isfinite(loss) or was is not None and not math.isfinite(was):
        return None
    return Event("LossNotFinite", f"rank 0 reports a loss of {loss}", warning=True)
