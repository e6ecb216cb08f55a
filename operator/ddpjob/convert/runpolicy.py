"""Reads the run policy and the elastic policy of a PyTorchJob."""

from ddpjob.convert.fields import Fields
from ddpjob.json_depth import Body

_CLEAN_POD_POLICIES = ("Running", "None", "All")
_NOT_ELASTIC = "a DDPJob is not elastic, it trains on nnodes nodes or not at all"
_OURS = "ddpjob sets the rendezvous"


def read_run_policy(policy: Fields) -> tuple[Body, int | None]:
    """Return the fields of a DDPJob's spec that say the same, and the limit of restarts, or None.

    The limit is `backoffLimit`. Raises InvalidJob, with the path, for a value of another type.
    """
    clean = policy.take("cleanPodPolicy", str)
    if clean not in (None, *_CLEAN_POD_POLICIES):
        rule = f"must be one of {', '.join(_CLEAN_POD_POLICIES)}"
        raise policy.error("cleanPodPolicy", rule, clean)
    found: Body = {"cleanPodPolicy": clean or "None"}
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        if (seconds := policy.take(name, int)) is not None:
            found[name] = seconds
    if policy.take("suspend", bool):
        found["suspend"] = True
    found |= _read_scheduling(policy.part("schedulingPolicy"))
    if (manager := policy.take("managedBy", str)) not in (None, "kubeflow.org/training-operator"):
        policy.notes.lost(policy.where("managedBy"), f"{manager!r}: it does not know DDPJobs")
    return found, policy.take("backoffLimit", int)


def _read_scheduling(policy: Fields) -> Body:
    found: Body = {}
    if seconds := policy.take("scheduleTimeoutSeconds", int):
        found["startupDeadlineSeconds"] = seconds
        reason = "the deadline also covers the pull of images"
        path = policy.where("scheduleTimeoutSeconds")
        policy.notes.changed(path, f"is startupDeadlineSeconds; {reason}")
    if name := policy.take("priorityClass", str):
        found["template"] = {"spec": {"priorityClassName": name}}
        reason = "the class of the pods, as there is no pod group"
        policy.notes.changed(policy.where("priorityClass"), f"{name!r}: {reason}")
    policy.leave_out("ddpjob has no queues", ("queue",))
    reason = "ddpjob is no gang scheduler; startupDeadlineSeconds frees the nodes of half a group"
    policy.leave_out(reason, ("minAvailable", "minResources"))
    return found


def read_elastic_policy(policy: Fields) -> tuple[int | None, int | None]:
    """Return the limit of restarts and the processes on each node, each None if it is absent."""
    policy.leave_out(_NOT_ELASTIC, ("minReplicas", "maxReplicas", "metrics"))
    policy.leave_out(_OURS, ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf"))
    if policy.take("standalone", bool):
        text = "true: all nodes train together, not each by itself"
        policy.notes.changed(policy.where("standalone"), text)
    return policy.take("maxRestarts", int), policy.take("nProcPerNode", int)
