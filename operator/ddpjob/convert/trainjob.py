"""Turns a TrainJob of Kubeflow Trainer v2 (trainer.kubeflow.org/v1alpha1) into a DDPJob."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddpjob.api.base import quantity_value
from ddpjob.api.spec import gpus
from ddpjob.convert import tables
from ddpjob.convert.fields import Dropped, Fields, cleaned
from ddpjob.convert.pod import Pod, read_labels, read_metadata, read_pod
from ddpjob.convert.spec import finished, read_processes, resources_of, spec_of, start_of
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

API_VERSION = "trainer.kubeflow.org/v1alpha1"
CLUSTER_KIND, KIND = "ClusterTrainingRuntime", "TrainingRuntime"
CONTAINER = "node"
_ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
# The runtime that is known without its file: torch-distributed, as this Trainer ships it.
_SHIPPED_BY, _SHIPPED = "Kubeflow Trainer v2.3.0", "torch-distributed"
_IMAGE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
_POD = {"spec": {"containers": [{"name": CONTAINER, "image": _IMAGE}]}}
_TEMPLATE = {"metadata": {"labels": {_ANCESTOR_LABEL: "trainer"}}, "spec": {"template": _POD}}
_JOBS = [{"name": CONTAINER, "template": _TEMPLATE}]
_SHIPPED_SPEC = {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": _JOBS}}}
# Kubeflow Trainer adds the rest of this command itself.
_TUNE = ["tune", "run"]


def is_runtime(body: Any) -> bool:
    """Return whether this is a training runtime, to which TrainJobs refer."""
    known = [(API_VERSION, CLUSTER_KIND), (API_VERSION, KIND)]
    return isinstance(body, dict) and (body.get("apiVersion"), body.get("kind")) in known


@dataclass
class _Runtime:
    """What a runtime says of the jobs that refer to it. Patches change the metadata and the pod.

    `job` is the name of the trainer's job, at which patches aim, and `metadata` is the JobSet's.
    """

    spec: Body
    processes: int | str
    is_torch: bool
    metadata: Body
    job: str
    pod: Body


def convert_train_job(source: Fields, objects: Iterable[Any]) -> Body:
    """Return the DDPJob that does what the TrainJob does, and note the differences."""
    notes, metadata, fields = source.notes, read_metadata(source), source.part("spec")
    found = _find_runtime(objects, fields.part("runtimeRef"), metadata.get("namespace", ""))
    runtime = _read_runtime(found, metadata["name"])
    trainer = fields.part("trainer")
    _apply_patches(runtime, fields)
    _apply_trainer(runtime.pod, trainer)
    template = Fields(runtime.pod, "pod", notes)
    pod = read_pod(template, CONTAINER)
    template.end()
    spec = runtime.spec | spec_of(pod) | fields.read(tables.TRAIN_JOB)
    if (nodes := trainer.take("numNodes", int)) is not None:
        spec["nnodes"] = nodes
    spec |= _start(pod, spec, runtime, trainer)
    if pod.program.max_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": pod.program.max_restarts}
    if "failurePolicy" not in spec:
        path = "runtime.spec.template.spec.failurePolicy"
        notes.changed(path, f"absent: {tables.GROUP_RESTARTS}")
    for kind in ("labels", "annotations"):  # v2.0 has spec.labels
        own = {**runtime.metadata.get(kind, {}), **fields.part(kind).rest()}
        if own:
            metadata[kind] = {**own, **metadata.get(kind, {})}
    source.end()
    return finished(metadata, spec, notes)


def _find_runtime(objects: Iterable[Any], reference: Fields, namespace: str) -> Fields:
    """Return the spec of the runtime that a TrainJob of this namespace refers to."""
    reference.take("apiGroup", str)
    kind, name = reference.take("kind", str) or CLUSTER_KIND, reference.take("name", str)
    for body in filter(is_runtime, objects):
        found = Fields(cleaned(body), "runtime", reference.notes)
        own = found.part("metadata").rest()
        is_near = kind == CLUSTER_KIND or own.get("namespace", namespace) == namespace
        if body["kind"] == kind and own.get("name") == name and (is_near or not namespace):
            return found.part("spec")
    if (kind, name) != (CLUSTER_KIND, _SHIPPED):
        rule = (
            f"must be a runtime of the input, or {_SHIPPED} of {_SHIPPED_BY}: give its file "
            "too (kubectl get clustertrainingruntimes,trainingruntimes -o yaml)"
        )
        raise reference.error("name", rule, name)
    text = f"not in the input, so as {_SHIPPED_BY} has it; give its file if yours differs"
    reference.notes.changed(reference.where("name"), f"{name!r}: {text}")
    return Fields(cleaned(_SHIPPED_SPEC), "runtime.spec", reference.notes)


def _read_runtime(source: Fields, name: str) -> _Runtime:
    """Return what the runtime says. `name` is that of the TrainJob."""
    is_torch, nodes = "torch" in source.part("mlPolicy"), source.take("mlPolicy.numNodes", int)
    processes = read_processes(source, "mlPolicy.torch.numProcPerNode") or "auto"
    metadata = read_labels(source.part("template.metadata"))
    job, pod, spec = _read_jobs(source)
    if volumes := list(_claims(source, name)):
        pod = overlay.merge(pod, {"spec": {"volumes": volumes}})
    spec = {"nnodes": 1 if nodes is None else nodes} | spec | source.read(tables.RUNTIME)
    source.end()
    return _Runtime(spec, processes, is_torch, metadata, job, pod)


def _read_jobs(source: Fields) -> tuple[str, Body, Body]:
    """Return the trainer's job: its name, the template of its pod, and fields of the spec."""
    found = None
    for job in source.parts("template.spec.replicatedJobs"):
        name = job.take("name", str) or ""
        label = job.part("template.metadata.labels").rest().get(_ANCESTOR_LABEL)
        if label == "trainer" and not found:
            pod = job.part("template.spec.template").rest()
            found = name, pod, job.read(tables.REPLICATED_JOB)
        else:
            job.notes.lost(job.path, "a DDPJob is one group of pods, so run this job before it")
            job.rest()
    if found is None:
        rule = f"must have a job with the label {_ANCESTOR_LABEL}: trainer"
        raise InvalidJob(source.where("template.spec.replicatedJobs"), rule)
    return found


def _claims(source: Fields, name: str) -> Iterator[Body]:
    """Yield a volume for each claim that the JobSet would have made."""
    for policy in source.parts("template.spec.volumeClaimPolicies"):
        for template in policy.parts("templates"):
            volume = template.take("metadata.name", str)
            claim = f"{volume}-{name}"
            path = source.where(f"template.spec.volumeClaimPolicies[{volume}]")
            reason = "must be there, with what the initializers would have loaded"
            source.notes.lost(path, f"the claim {claim!r} {reason}")
            yield {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        policy.rest()


def _apply_patches(runtime: _Runtime, spec: Fields) -> None:
    """Apply `runtimePatches`, and what older versions had in their place."""
    for name in ("podSpecOverrides", "podTemplateOverrides"):  # v2.0; v2.1 and v2.2
        for patch in spec.parts(name):
            if runtime.job in [job.take("name", str) for job in patch.parts("targetJobs")]:
                change = patch.rest()
                change = {"spec": change} if name == "podSpecOverrides" else change
                runtime.pod = overlay.merge(runtime.pod, change)
            patch.read(tables.OTHER_JOB)
    for patch in spec.parts("runtimePatches"):
        patch.take("manager", str)
        patch.take("time", str)
        template = patch.part("trainingRuntimeSpec.template")
        runtime.metadata = overlay.merge(runtime.metadata, read_labels(template.part("metadata")))
        for job in template.parts("spec.replicatedJobs"):
            if job.take("name", str) == runtime.job:
                job.read({"template.metadata": Dropped("a DDPJob has no Jobs")})
                change = job.part("template.spec.template").rest()
                runtime.pod = overlay.merge(runtime.pod, change)
            else:
                job.read(tables.OTHER_JOB)


def _apply_trainer(pod: Body, trainer: Fields) -> None:
    """Apply image, command, args, env and resources of the TrainJob to the pod's trainer."""
    for problem in overlay.misshapen(pod.get("spec", {}), "pod.spec"):
        raise problem
    containers: list[Body] = pod.get("spec", {}).get("containers", [])
    main: Body = next((each for each in containers if each["name"] == CONTAINER), {})
    for name, kind in (("image", str), ("command", list), ("args", list)):
        if (value := trainer.take(name, kind)) is not None:
            main[name] = value
    if main.get("command") == _TUNE:
        rule = "must be whole: to tune run alone Kubeflow Trainer adds the recipe and its config"
        raise InvalidJob(trainer.where("command"), rule)
    variables = [variable.rest() for variable in trainer.parts("env")]
    names = [variable.get("name") for variable in variables]
    kept = [variable for variable in main.get("env", []) if variable["name"] not in names]
    main["env"] = [*kept, *variables]
    wanted = trainer.part("resourcesPerNode").rest()
    main["resources"] = overlay.merge(main.get("resources", {}), wanted)


def _start(pod: Pod, spec: Body, runtime: _Runtime, trainer: Fields) -> Body:
    """Return the processes on each node. For `auto` without GPUs Trainer counts the CPUs."""
    declared = read_processes(trainer, "numProcPerNode") or runtime.processes
    resources = resources_of(spec.get("resources"))
    counts_cpus = runtime.is_torch and pod.program.starts_workers
    if counts_cpus and declared in ("auto", "cpu") and not gpus(resources):
        # The CPUs of the requests, or else of the limits.
        amounts = [(part or {}).get("cpu", 0) for part in (resources.requests, resources.limits)]
        declared = max(1, math.ceil(next(filter(None, map(quantity_value, amounts)), 0)))
    return start_of(pod.program, spec, declared, trainer.where("numProcPerNode"), trainer.notes)
