"""The Workload by which Kueue knows what a job asks for. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from ddpjob import names
from ddpjob.api import DDPJob, Status
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.objects import labels_of, render_object
from ddpjob.pods.render import Agent, both

# What Kueue looks at in a pod.
_OF_PODS = (
    *("nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName"),
    *("overhead", "resources", "resourceClaims", "restartPolicy"),
)
_OF_CONTAINERS = ("name", "resources", "restartPolicy")
_KUEUE = "kueue.x-k8s.io"
# Kueue's annotations of a pod's template, and the fields of a topology request that they stand for.
_TOPOLOGY: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "podset-required-topology": ("required", str),
    "podset-preferred-topology": ("preferred", str),
    "podset-unconstrained-topology": ("unconstrained", lambda text: text == "true"),
    "podset-slice-required-topology": ("podSetSliceRequiredTopology", str),
    "podset-slice-size": ("podSetSliceSize", lambda text: int(text) if text.isdigit() else text),
}


def workload(job: DDPJob, policy: Policy, priority_class: Body, priority: int) -> Body:
    """Return the Workload by which Kueue knows what the job asks for.

    It is the same for all attempts. Raises InvalidJob where the job cannot have pods.
    """
    bare = job.model_copy(update={"status": Status()})
    first, others, found = both(bare, Agent(b""), policy)
    for problem in found:
        raise problem
    count = job.spec.nnodes + job.spec.spares
    parts = _part_of(first), _part_of(others)
    sets = [{"name": "first", "count": 1, **parts[0]}]
    sets.append({"name": "others", "count": count - 1, **parts[1]})
    for each in sets:  # both near each other
        if (asked := each.get("topologyRequest")) and asked.keys() & {"required", "preferred"}:
            each["topologyRequest"] = {**asked, "podSetGroupName": "all"}
    if count == 1 or parts[0] == parts[1]:
        sets = [{"name": "main", "count": count, **parts[0]}]
    return render_object(
        "workload.json.j2",
        job,
        labels=labels_of(job) | {f"{_KUEUE}/job-uid": job.uid},  # Kueue's messages have it
        queue=job.metadata.labels[names.QUEUE_LABEL],
        priority_class=priority_class,
        priority=priority,
        pod_sets=sets,
    )


def _part_of(pod: Body) -> Body:
    """Return what Kueue has to know of a pod: its resources, and where it may be."""
    spec = {key: pod["spec"][key] for key in _OF_PODS if key in pod["spec"]}
    for kind in ("containers", "initContainers"):
        containers = pod["spec"].get(kind) or []
        spec[kind] = [{key: c[key] for key in _OF_CONTAINERS if key in c} for c in containers]
    found: Body = {"template": {"spec": spec}}
    asked = pod["metadata"]["annotations"]
    topology: Body = {
        field: read(asked[f"{_KUEUE}/{annotation}"])
        for annotation, (field, read) in _TOPOLOGY.items()
        if f"{_KUEUE}/{annotation}" in asked
    }
    if topology:
        found["topologyRequest"] = {**topology, "podIndexLabel": names.RANK_LABEL}
    return found
