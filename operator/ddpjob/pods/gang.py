"""Gangs: the pods of an attempt that a scheduler places together, or not at all. Pure.

Each attempt has a PodGroup of its own, because dead pods of the one before would count as members.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.api.base import below
from ddpjob.api.messages import misfit
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.objects import labels_of, owner_of, render_object


@dataclass(frozen=True)
class Gang:
    """The PodGroup by which a scheduler places all pods of an attempt, or none of them."""

    scheduler: str
    """As the setting `gang.scheduler` has it."""
    versions: tuple[str, ...]
    """The `apiVersion`s that it may have, the newest first."""
    body: Body
    """All of it but the version."""
    member: Body
    """What makes a pod its member."""
    needs_requests: bool
    """Pods without requests are no members."""


def gang_of(job: DDPJob, policy: Policy) -> Gang | None:
    """Return the gang of the job's current attempt, or None if each pod is placed by itself."""
    kind, wish = policy.gang.scheduler, job.spec.scheduling
    if kind == "none" or job.spec.nnodes == 1 or wish and wish.gang == "None":
        return None
    metadata = {
        "name": names.gang_name(job.name, job.status.attempt),
        "namespace": job.namespace,
        "labels": labels_of(job),
        "ownerReferences": [owner_of(job)],
    }
    found = render_object(
        f"gang-{kind}.json.j2",
        job,
        metadata=metadata,
        scheduler_name=policy.gang.scheduler_name,
        queue=wish and wish.queue,
        priority=((job.spec.template or {}).get("spec") or {}).get("priorityClassName"),
    )
    versions, needs_requests = tuple(found["versions"]), found.get("needsRequests", False)
    return Gang(kind, versions, found["group"], found["pod"], needs_requests)


def outside(gang: Gang, pod: Body) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each field by which the pod would not be in its gang.

    Volcano takes pods without requests for fillers of gaps (its action backfill), one by one.
    """
    asked = [container.get("resources") or {} for container in pod["spec"]["containers"]]
    if gang.needs_requests and not any(each for part in asked for each in part.values()):
        rule = "must have requests or limits: Volcano places pods without them one by one"
        yield InvalidJob("spec.resources", rule)
    metadata = pod["metadata"]
    parts = [("spec", gang.member.get("spec", {}), pod["spec"])]
    for kind, own in gang.member.get("metadata", {}).items():
        parts.append((f"metadata.{kind}", own, metadata[kind]))
    for path, own, found in parts:
        for name, value in own.items():
            if (theirs := found[name]) != value:
                where = f"spec.template.{path}{below(name)}"
                yield misfit(where, "is set by ddpjob for the gang", theirs)
