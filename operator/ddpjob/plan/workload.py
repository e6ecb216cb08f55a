"""Reads Kueue's Workloads, ResourceFlavors and their wishes for pods. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ddpjob import names
from ddpjob.api import Admission, PodSetAdmission
from ddpjob.json_depth import Body
from ddpjob.plan.model import Assignment, Workload
from ddpjob.text import printable

# Characters of Kueue's words that are kept.
MAX_WORDS = 1024


def workload_record(body: Mapping[str, Any]) -> Workload | None:
    """Return the record of a Workload, or None if it is no DDPJob's."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    owner: Body = next((each for each in owners if each.get("controller")), {})
    if (owner.get("apiVersion"), owner.get("kind")) != (names.API_VERSION, names.KIND):
        return None
    if metadata["name"] != names.workload_name(owner["name"], owner["uid"]):
        return None
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    admission = status.get("admission") or {}
    return Workload(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        job=owner["name"],
        owner_uid=owner["uid"],
        wish=wish_of(spec),
        admitted=_is_true(conditions, "Admitted"),
        evicted=_is_true(conditions, "Evicted"),
        holds_quota=bool(admission),
        pods_ready=_is_true(conditions, "PodsReady"),
        message=_why(spec, conditions),
        cluster_queue=admission.get("clusterQueue", ""),
        assignments=tuple(_assignments(metadata["name"], admission, status)),
    )


def _is_true(conditions: Mapping[str, Body], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _why(spec: Mapping[str, Any], conditions: Mapping[str, Body]) -> str:
    """Return why a Workload is not admitted: what Kueue has said last, of what is so now."""
    if spec.get("active") is False:
        return "it was deactivated (spec.active of its Workload is false)"
    evicted, quota = conditions.get("Evicted", {}), conditions.get("QuotaReserved", {})
    said = quota
    if quota.get("status") == "True":
        if evicted.get("status") != "True":
            return "quota is reserved; admission checks are not done yet"
        said = evicted
    words = ": ".join(filter(None, (said.get("reason"), said.get("message"))))
    return printable(words, MAX_WORDS) or "Kueue has not looked at it yet"


def _assignments(name: str, admission: Body, status: Mapping[str, Any]) -> Iterable[Assignment]:
    updates = [
        update
        for check in status.get("admissionChecks") or []
        for update in check.get("podSetUpdates") or []
    ]
    for found in admission.get("podSetAssignments") or []:
        asked = [each for each in updates if each.get("name") == found["name"]]
        gated = bool(found.get("topologyAssignment") or found.get("delayedTopologyRequest"))
        if gated:
            labels = {"kueue.x-k8s.io/podset": found["name"]}
            asked.append({"labels": labels, "annotations": {"kueue.x-k8s.io/workload": name}})
        flavors = dict.fromkeys((found.get("flavors") or {}).values())
        yield Assignment(found["name"], tuple(flavors), tuple(asked), gated)


def admission_of(workload: Workload, flavors: Mapping[str, Mapping[str, Any]]) -> Admission:
    """Return what Kueue has admitted a job with; `flavors` are the specs of its ResourceFlavors.

    Raises ValueError where they ask for something that a pod cannot have.
    """
    sets = []
    for found in workload.assignments:
        specs = (flavors[name] for name in found.flavors)
        ours = ({**each, "nodeSelector": each.get("nodeLabels")} for each in specs)
        asked = [*ours, *found.asked]
        kinds = ("labels", "annotations", "nodeSelector")
        texts = {
            kind: dict(pair for each in asked for pair in (each.get(kind) or {}).items())
            for kind in kinds
        }
        tolerations = [one for each in asked for one in each.get("tolerations") or []]
        part = {"name": found.name, **texts, "tolerations": tolerations, "gated": found.gated}
        sets.append(PodSetAdmission.model_validate(part))
    return Admission(
        workload=workload.name,
        uid=workload.uid,
        cluster_queue=workload.cluster_queue,
        pod_sets=sets,
    )


def wish_of(spec: Mapping[str, Any]) -> str:
    """Return a hash of what a Workload asks for: 16 characters.

    Whoever may change Workloads could otherwise have a job run on less quota than it uses.
    """
    asked = [spec.get("queueName"), spec.get("priorityClassRef"), spec.get("podSets")]
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
