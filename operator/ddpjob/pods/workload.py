"""The Workload by which Kueue knows what a job asks for. Pure."""

from ddpjob import names
from ddpjob.api import DDPJob, Status
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.objects import labels_of, render_object
from ddpjob.pods.render import Agent, both

# What Kueue looks at in a pod, besides resources.
_OF_POD_SETS = (
    *("nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName"),
    *("overhead", "restartPolicy"),
)
_KUEUE = "kueue.x-k8s.io"
# Kueue's annotations of a pod's template, and the fields of a topology request that they stand for.
_TOPOLOGY = {
    "podset-required-topology": "required",
    "podset-preferred-topology": "preferred",
    "podset-unconstrained-topology": "unconstrained",
    "podset-slice-required-topology": "podSetSliceRequiredTopology",
    "podset-slice-size": "podSetSliceSize",
}


def workload(job: DDPJob, policy: Policy, priority_class: Body, priority: int) -> Body:
    """Return the Workload by which Kueue knows what the job asks for.

    It is the same for all attempts. Raises InvalidJob where the job cannot have pods.
    """
    bare = job.model_copy(update={"status": Status()})
    first, others, found = both(bare, Agent(b""), policy)
    for problem in found:
        raise problem
    count = job.spec.nnodes
    sets = [_pod_set("first", 1, first), _pod_set("others", count - 1, others)]
    if count == 1 or first == others:
        sets = [_pod_set("main", count, first)]
    return render_object(
        "workload.json.j2",
        job,
        labels=labels_of(job) | {f"{_KUEUE}/job-uid": job.uid},  # Kueue's messages have it
        queue=job.metadata.labels[names.QUEUE_LABEL],
        priority_class=priority_class,
        priority=priority,
        pod_sets=sets,
    )


def _pod_set(name: str, count: int, pod: Body) -> Body:
    """Return a part of the pods, with what Kueue asks of them: resources, and where they may be."""
    spec = {key: pod["spec"][key] for key in _OF_POD_SETS if key in pod["spec"]}
    for kind in ("containers", "initContainers"):
        spec[kind] = [
            {
                key: each[key]
                for key in ("name", "image", "resources", "restartPolicy")
                if key in each
            }
            for each in pod["spec"].get(kind) or []
        ]
    asked = pod["metadata"]["annotations"]
    topology: Body = {
        field: asked[f"{_KUEUE}/{annotation}"]
        for annotation, field in _TOPOLOGY.items()
        if f"{_KUEUE}/{annotation}" in asked
    }
    if "unconstrained" in topology:
        topology["unconstrained"] = topology["unconstrained"] == "true"
    if (size := topology.get("podSetSliceSize", "")).isdigit():
        topology["podSetSliceSize"] = int(size)
    found: Body = {"name": name, "count": count, "template": {"spec": spec}}
    if topology:
        found["topologyRequest"] = {**topology, "podIndexLabel": names.RANK_LABEL}
    return found
