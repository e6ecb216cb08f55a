"""Reads the metadata of the object that is converted."""

from ddpjob.convert.fields import Fields
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

# What the API server writes, and what kubectl keeps for itself.
_SYSTEM = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE = "kueue.x-k8s.io/"
_UNKNOWN_TO_KUEUE = "kept, but Kueue does not know DDPJobs, so it neither queues nor starts the job"


def read_metadata(source: Fields) -> Body:
    """Return the metadata of the DDPJob, and note what belongs to the old object alone.

    Raises InvalidJob if there is no name.
    """
    metadata = source.part("metadata")
    name = metadata.take("name", str)
    if name is None:
        rule = "is required: a DDPJob's pods are named after it, so generateName is not enough"
        raise InvalidJob(metadata.where("name"), rule)
    found: Body = {"name": name}
    if namespace := metadata.take("namespace", str):
        found["namespace"] = namespace
    parts = {kind: metadata.part(kind) for kind in ("labels", "annotations")}
    old = [metadata.where(name) for name in _SYSTEM if metadata.take(name, object) is not None]
    if parts["annotations"].take(_LAST_APPLIED, object) is not None:
        old.append(parts["annotations"].where(_LAST_APPLIED))
    if source.take("status", object) is not None:
        old.append("status")
    if old:
        source.notes.lost(", ".join(old), "of the old object alone")
    for kind, part in parts.items():
        for key in part:
            if key.startswith(_KUEUE):
                part.notes.changed(part.where(key), _UNKNOWN_TO_KUEUE)
        if rest := part.rest():
            found[kind] = rest
    reason = "of the old object alone"
    metadata.leave_out(reason, ("generateName", "ownerReferences", "finalizers"))
    return found
