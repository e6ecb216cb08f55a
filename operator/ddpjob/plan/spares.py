"""Spares: pods beyond a job's nodes, which wait for the rank of one that is lost. Pure.

They come once all nodes run, so that they take neither room nor quota from these, and a job never
waits for one.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ddpjob import api, names
from ddpjob.api import Spare
from ddpjob.plan.model import Decision, PodRecord, requeue
from ddpjob.plan.own import Inputs, with_spares
from ddpjob.plan.restart import is_fit

# Seconds between two creations of spares of a job, whatever becomes of them.
AGAIN_SECONDS = 60.0


def provide_spares(inputs: Inputs, decision: Decision) -> Decision:
    """Return `decision` with the creation of the spares that the job lacks, if all its nodes run.

    The status has their numbers first.
    """
    status, wanted = decision.status, inputs.job.spec.spare_pods
    if not wanted or status.state != "Running" or decision.acts:
        return decision
    fit = {-pod.rank for pod in inputs.pods.spares if pod.live and is_fit(inputs.observed, pod)}
    entries, stored = status.own_pods.spares, inputs.job.status.own_pods.spares
    waiting = [e for e in entries if e.rank is None and (e.number in fit or not e.uid)]
    missing = tuple(-e.number for e in waiting if e.number not in fit and e in stored)
    kept = _kept(inputs, entries, waiting)
    lacking = min(wanted - len(waiting), api.MAX_SPARES - len(kept))
    if not missing and lacking <= 0:
        return decision
    if inputs.observed.spares_wait > 0:
        return requeue(decision, inputs.observed.spares_wait)
    if lacking > 0:
        last = entries[-1].number if entries else 0
        new = (Spare(number=last + n) for n in range(1, lacking + 1))
        decision = replace(decision, status=with_spares(status, [*kept, *new]))
    if missing and not inputs.observed.children_ready:
        return replace(decision, prepare=True)
    return replace(decision, create=missing)


def takers(inputs: Inputs, lost: Set[int]) -> Mapping[int, PodRecord]:
    """Return the spares that can take ranks of these `lost` ones, by the ranks.

    A spare on a node that nobody hears would be lost as well.
    """
    job, silent = inputs.job, inputs.observed.silent
    gone = {p.node for p in inputs.current if p.rank in silent or p.unreachable_since}
    pods = [p for p in inputs.pods.spares if p.running and is_fit(inputs.observed, p)]
    ready = sorted((p for p in pods if p.node not in gone), key=lambda pod: -pod.rank)
    ranks = [rank for rank in sorted(lost) if rank or not job.spec.has_own_rank_0]
    return dict(zip(ranks, ready, strict=False))


def _kept(inputs: Inputs, entries: Sequence[Spare], waiting: Sequence[Spare]) -> list[Spare]:
    """Return the entries of pods that are there or to come, and the last: numbers only grow."""
    job, attempt = inputs.job, inputs.job.status.attempt
    there = {pod.name for pod in (*inputs.current, *inputs.pods.older)}
    return [
        entry
        for entry in entries
        if entry in waiting
        or entry is entries[-1]
        or names.pod_name(job.name, attempt, -entry.number) in there
    ]
