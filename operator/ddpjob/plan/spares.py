"""Spares: pods beyond a job's nodes, which wait for the rank of one that is lost. Pure.

They come once all nodes run, so that they take neither room nor quota from these, and a job never
waits for one.
"""

from collections.abc import Sequence
from dataclasses import replace

from ddpjob import api, names
from ddpjob.api import Spare, Status
from ddpjob.plan.model import UNSCHEDULABLE, Decision, PodRecord, requeue
from ddpjob.plan.own import Inputs, with_spares
from ddpjob.plan.restart import is_fit, seconds_avoided, silent_nodes, without_old_silences

# Seconds between two creations of spares of a job, whatever becomes of them.
AGAIN_SECONDS = 60.0


def provide_spares(inputs: Inputs, decision: Decision) -> Decision:
    """Return `decision` with the creation of the spares that the job lacks, if all its nodes run.

    The status has their numbers first.
    """
    status, spec = decision.status, inputs.job.spec
    wanted = min(spec.spare_pods + spec.nnodes - inputs.size, api.MAX_SPARES)
    entries, stored = status.own_pods.spares, inputs.job.status.own_pods.spares
    if status.state != "Running" or decision.acts or _are_old(inputs) or not (wanted or entries):
        return decision
    if inputs.observed.edit_error is not None:  # nobody knows how a spare would be made now
        return decision
    here = [pod for pod in inputs.pods.spares if pod.live and is_fit(inputs.observed, pod)]
    if status.silent_nodes and any(pod.reason == UNSCHEDULABLE for pod in here):
        # They keep off silent nodes, and where no other has room they are made anew afterwards.
        if (wait := seconds_avoided(status, inputs.now)) > 0:
            decision = requeue(decision, wait)
        else:
            here = [pod for pod in here if pod.reason != UNSCHEDULABLE]
    fit = {-pod.rank for pod in here}
    waiting = [e for e in entries if e.rank is None and (e.number in fit or not e.uid)]
    missing = tuple(-e.number for e in waiting if e.number not in fit and e in stored)
    kept = _kept(inputs, entries, waiting)
    lacking = min(wanted - len(waiting), api.MAX_SPARES - len(kept))
    if not wanted:  # since an edit; those without a rank are strays then
        kept = [entry for entry in kept if entry.rank is not None]
        return replace(decision, status=with_spares(status, kept))
    if not missing and lacking <= 0:
        return decision
    if inputs.observed.spares_wait > 0:
        return requeue(decision, inputs.observed.spares_wait)
    there = {-pod.rank for pod in inputs.pods.spares}
    gone = any(e.uid and e.rank is None and e.number not in there for e in entries)
    if gone and not inputs.observed.confirmed:
        return replace(decision, confirm=True)
    if lacking > 0:
        last = max((e.number for e in entries), default=0)
        new = (Spare(number=last + n) for n in range(1, lacking + 1))
        status = without_old_silences(status, inputs.now)
        decision = replace(decision, status=with_spares(status, [*kept, *new]))
    if missing and not inputs.observed.children_ready:
        return replace(decision, prepare=True)
    return replace(decision, create=missing)


def ready_spares(inputs: Inputs, status: Status) -> Sequence[PodRecord]:
    """Return the spares that may take ranks, the best first.

    None on a node that nobody hears, and last those on nodes that lose their pods: a drain perhaps.
    """
    silent = inputs.observed.silent
    if _are_old(inputs):
        return []
    gone = {p.node for p in inputs.current if p.rank in silent or p.unreachable_since}
    gone |= {*silent_nodes(status, inputs.now), *status.avoided_nodes}
    losing = {pod.node for pod in inputs.current if pod.disruption}
    pods = [p for p in inputs.pods.spares if p.running and is_fit(inputs.observed, p)]
    ready = [pod for pod in pods if pod.node not in gone]
    return sorted(ready, key=lambda pod: (pod.node in losing, -pod.rank))


def _are_old(inputs: Inputs) -> bool:
    """Whether the group's pods are from before an edit: the next attempt has new ones."""
    here = inputs.observed.spec_hash
    return any(here not in ("", pod.spec_hash) for pod in inputs.current)


def _kept(inputs: Inputs, entries: Sequence[Spare], waiting: Sequence[Spare]) -> list[Spare]:
    """Return the entries of pods that are there or to come."""
    job, attempt = inputs.job, inputs.job.status.attempt
    there = {pod.name for pod in (*inputs.current, *inputs.pods.older)}
    return [
        entry
        for entry in entries
        if entry in waiting or names.pod_name(job.name, attempt, -entry.number) in there
    ]
