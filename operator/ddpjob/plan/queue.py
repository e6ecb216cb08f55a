"""Whether a job with a queue of Kueue may have pods, and what becomes of its Workload. Pure.

Kueue admits a Workload, which the operator makes. What it has admitted is in the status before the
first pod. A Workload that Kueue evicts, or that somebody deletes, suspends the job: its pods end
with their grace, its quota goes back, and Kueue puts the Workload into the queue again by itself.
"""

from collections.abc import Iterable
from dataclasses import replace

from ddpjob import api
from ddpjob.api import DDPJob, Status
from ddpjob.plan.model import Decision, PodRecord, Queue, requeue
from ddpjob.plan.own import BEGUN, Inputs
from ddpjob.plan.reasons import QUEUED
from ddpjob.plan.status import with_accepted, with_condition

# While Kueue cannot be asked.
TROUBLE_SECONDS = 60.0


def eviction(inputs: Inputs, status: Status) -> str:
    """Return why the pods of a job that was admitted have to end; "" if they have not."""
    queue, admission = inputs.observed.queue, status.admission
    if queue is None or queue.trouble or status.state not in BEGUN:
        return ""
    found = queue.workload
    has_as_asked = admission is not None and found is not None and found.wish == queue.wish
    begins = status.state == "Restarting" and not inputs.pods.current and queue.waits
    if begins and queue.wish and not has_as_asked:
        return "Workload: Kueue has not admitted what the next attempt asks for"
    if admission is None:
        return ""
    if found is None or found.uid != admission.uid:
        return f"Workload {admission.workload} is gone"
    return "" if found.admitted and not found.evicted else f"Kueue: {found.message}"


def admit(inputs: Inputs, decision: Decision) -> tuple[Decision, bool]:
    """Return `decision`, with what a job with a queue waits for, and whether it may have pods.

    A job that runs already is left alone.
    """
    queue, status = inputs.observed.queue, decision.status
    if queue is None or not queue.waits or status.state in BEGUN:
        return decision, True
    found = queue.workload
    if queue.trouble:
        return requeue(_waiting(inputs, decision, queue.trouble), TROUBLE_SECONDS), False
    if found is None or found.wish != queue.wish:
        return replace(_waiting(inputs, decision), workload="replace"), False
    if found.evicted and found.holds_quota:
        return replace(_waiting(inputs, decision, found.message), workload="release"), False
    if found.evicted or not found.admitted or queue.admission is None:
        return _waiting(inputs, decision, found.message), False
    status = status.model_copy(update={"admission": queue.admission})
    return replace(decision, status=status), True


def _waiting(inputs: Inputs, decision: Decision, why: str = "") -> Decision:
    """Return `decision` for a job that waits, and why, unless that stands there already."""
    status = decision.status.model_copy(update={"state": "Queued", "admission": None})
    if not inputs.observed.create_error:
        status = with_accepted(inputs.job, status, inputs.now)
        words = why or "its Workload is being made"
        status = with_condition(status, QUEUED, words, now=inputs.now)
    return replace(decision, status=status)


def with_workload(
    job: DDPJob, decision: Decision, queue: Queue, pods: Iterable[PodRecord]
) -> Decision:
    """Return `decision`, with what follows from it for the job's Workload.

    Kueue is told whether all pods of an admitted job run: where it waits for that, it evicts a job
    that does not start. The quota of a job that is over goes back once no pod of it runs.
    """
    status, found = decision.status, queue.workload
    if found is None or decision.workload:
        return decision
    if status.state in api.FINISHED or status.state == "Suspended" and job.spec.suspend:
        is_over = not any(pod.live for pod in pods)
        return replace(decision, workload="delete") if is_over else decision
    if status.state not in BEGUN:
        return decision
    if not queue.waits and status.admission is None:  # its label was taken away while it waited
        return replace(decision, workload="delete")
    is_ready = status.state in ("Running", "Idle")
    if not found.admitted or found.pods_ready == is_ready:
        return decision
    if not queue.hears:
        return requeue(decision, TROUBLE_SECONDS)
    return replace(decision, workload="ready" if is_ready else "unready")
