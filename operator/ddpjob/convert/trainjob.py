"""Turns a TrainJob of Kubeflow Trainer v2 (trainer.kubeflow.org/v1alpha1) into a DDPJob."""

import math
from typing import Any

from pydantic import ValidationError

from ddpjob.api.base import quantity_value
from ddpjob.api.podtypes import Resources
from ddpjob.convert.draft import spec_of
from ddpjob.convert.fields import Fields, Notes
from ddpjob.convert.metadata import read_metadata
from ddpjob.convert.patches import PatchedPod
from ddpjob.convert.pod import Pod, read_pod
from ddpjob.convert.processes import gpus_of, read_processes, start_of
from ddpjob.convert.result import finished
from ddpjob.convert.runtime import Runtime, read_runtime
from ddpjob.convert.runtimes import Runtimes
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

CONTAINER = "node"
_OWN_MANAGER = "trainer.kubeflow.org/trainjob-controller"
_DEFAULT_RESTARTS = "the whole group restarts, not one container, at most 3 times without progress"


def convert_train_job(source: Fields, runtimes: Runtimes) -> Body:
    """Return the DDPJob that does what the TrainJob does, and note the differences.

    Raises InvalidJob, with the path, if no DDPJob does that.
    """
    notes, metadata, fields = source.notes, read_metadata(source), source.part("spec")
    body = runtimes.find(fields.part("runtimeRef"), metadata.get("namespace", ""))
    runtime, trainer = read_runtime(body, notes), fields.part("trainer")
    patched = PatchedPod(runtime.job, runtime.pod, runtime.metadata)
    patched.apply_patches(fields)
    patched.apply_trainer(trainer, CONTAINER)
    template = Fields(_with_claims(patched.pod, runtime, metadata["name"], notes), "pod", notes)
    pod = read_pod(template, CONTAINER)
    template.end()
    nodes = trainer.take("numNodes", int)
    spec = runtime.spec | spec_of(pod) | _read_job(fields)
    spec["nnodes"] = runtime.nnodes if nodes is None else nodes
    spec |= _start(pod, spec, runtime, trainer)
    if pod.program.max_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": pod.program.max_restarts}
    if "failurePolicy" not in spec:
        notes.changed("runtime.spec.template.spec.failurePolicy", f"absent: {_DEFAULT_RESTARTS}")
    metadata = _with_metadata(metadata, patched.metadata, fields)
    source.end()
    return finished(metadata, spec, notes)


def _read_job(fields: Fields) -> Body:
    """Return the fields of a DDPJob's spec that the TrainJob itself has."""
    found: Body = {}
    if fields.take("suspend", bool):
        found["suspend"] = True
    if (seconds := fields.take("activeDeadlineSeconds", int)) is not None:
        found["activeDeadlineSeconds"] = seconds
    if (manager := fields.take("managedBy", str)) not in (None, _OWN_MANAGER):
        fields.notes.lost(fields.where("managedBy"), f"{manager!r}: it does not know DDPJobs")
    initializer = fields.part("initializer")
    reason = "ddpjob loads nothing, so put it into a volume, and name that in spec.data"
    initializer.leave_out(reason, ("dataset", "model"))
    return found


def _start(pod: Pod, spec: Body, runtime: Runtime, trainer: Fields) -> Body:
    """Return the processes on each node. For `auto` without GPUs Trainer counts the CPUs."""
    path = trainer.where("numProcPerNode")
    declared = read_processes(trainer, "numProcPerNode") or runtime.processes
    resources: Any = spec.get("resources") or {}
    counts_cpus = runtime.is_torch and pod.program.starts_workers
    if counts_cpus and declared in ("auto", "cpu") and not gpus_of(resources):
        declared = max(1, _cpus(resources))
    return start_of(pod.program, spec, declared, path, trainer.notes)


def _cpus(resources: Any) -> int:
    """Return the CPUs of the requests, or else of the limits, rounded up; 0 if there are none."""
    try:
        known = Resources.model_validate(resources)
    except ValidationError:  # the check of the result has words for it
        return 0
    counts = (
        quantity_value((amounts or {}).get("cpu", 0)) for amounts in (known.requests, known.limits)
    )
    return math.ceil(next(filter(None, counts), 0))


def _with_claims(pod: Body, runtime: Runtime, name: str, notes: Notes) -> Body:
    """Return the pod with a volume for each claim that the JobSet would have made."""
    volumes = []
    for volume in runtime.claims:
        claim = f"{volume}-{name}"
        text = f"the claim {claim!r} must be there, with what the initializers would have loaded"
        notes.lost(f"runtime.spec.template.spec.volumeClaimPolicies[{volume}]", text)
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
    merged: Body = overlay.merge(pod, {"spec": {"volumes": volumes}}) if volumes else pod
    return merged


def _with_metadata(metadata: Body, jobset: Body, fields: Fields) -> Body:
    """Return the metadata with the labels and annotations that the JobSet would have had."""
    found = dict(metadata)
    for kind in ("labels", "annotations"):
        own = {**(jobset.get(kind) or {}), **fields.part(kind).rest()}  # v2.0 has spec.labels
        if own:
            found[kind] = {**own, **found.get(kind, {})}
    return found
