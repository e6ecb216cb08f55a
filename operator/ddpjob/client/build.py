"""Makes the object of a job from what a command line, or a call of the SDK, says about it. Pure.

`submit` and `launch` share it. What is said overrides a job that was read from a file.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ddpjob import names, why
from ddpjob.api.job import MAX_NAME, validate
from ddpjob.client.edits import program, put
from ddpjob.client.jobfile import GENERATED, named
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.names import is_gpu

# Jobs get GPUs of this kind, unless the file has others.
GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What is said about a job. None and empty say nothing."""

    args: Sequence[str] | None = None
    """The script, or `-m` and a module, then its own arguments."""
    script_args: Sequence[str] | None = None
    """The arguments alone: the script of the file stays."""
    name: str | None = None
    """By default one is made of the script's name: `train-k7x2p`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job, beside those of the file."""
    image: str | None = None
    nnodes: int | None = None
    nproc_per_node: int | str | None = None
    gpus: int | None = None
    """GPUs of each node."""
    cpu: str | None = None
    memory: str | None = None
    checkpoint: str | None = None
    """`CLAIM`, or `CLAIM:PATH` with the path at which it is mounted."""
    env: Mapping[str, str] = field(default_factory=dict)
    env_from_secret: Sequence[str] = ()
    image_pull_secrets: Sequence[str] = ()
    hang_timeout_seconds: int | None = None
    max_restarts: int | None = None


def build_job(options: JobOptions, base: Mapping[str, Any] | None = None) -> Body:
    """Return the object of the job that `options` describe, or that they make of `base`.

    Without a name it has `generateName`. A part of `base` that is of another type is replaced;
    `problems` finds what else is wrong. Raises InvalidJob for a spec or metadata that is no object.
    """
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {}, "spec": {}}
    job: Body = head if base is None else deepcopy(dict(base))
    job.pop("status", None)
    for part in ("metadata", "spec"):
        if job.get(part) is None:
            job[part] = {}
        if not isinstance(job[part], dict):
            raise InvalidJob(part, "must be an object", job[part])
    spec, metadata = job["spec"], job["metadata"]
    _set_program(spec, options)
    claim, colon, path = (options.checkpoint or "").partition(":")
    volume = {"persistentVolumeClaim": {"claimName": claim}}
    fields: dict[tuple[str, ...], Any] = {
        ("image",): options.image,
        ("nnodes",): options.nnodes,
        ("nprocPerNode",): options.nproc_per_node,
        ("hangTimeoutSeconds",): options.hang_timeout_seconds,
        ("checkpoint", "volume"): volume if claim else None,
        ("checkpoint", "mountPath"): path if colon else None,
        ("failurePolicy", "maxRestarts"): options.max_restarts,
    }
    for place, value in fields.items():
        if value is not None:
            put(spec, place, value)
    _set_resources(spec, options)
    _add_environment(spec, options)
    secrets: list[Any] = [{"name": name} for name in options.image_pull_secrets]
    _append(spec, "imagePullSecrets", secrets)
    _set_name(job, options.name)
    for label, text in options.labels.items():
        put(metadata, ("labels", label), text)
    return job


def problems(job: Any) -> list[InvalidJob]:
    """Return an InvalidJob for each rule of the API server that the job breaks."""
    return validate(named(job) if isinstance(why.part(job, "metadata"), Mapping) else job)


def stem(args: Sequence[str]) -> str:
    """Return the name of a program as the name of a job may begin: `train` for `src/Train.py`."""
    words = [*args, "", ""]
    if words[0] == "-m":
        last = words[1].removesuffix(".__main__").rpartition(".")[2]
    else:
        last = words[0].rpartition("/")[2].removesuffix(".py")
    found = re.sub("[^a-z0-9]+", "-", last.lower()).strip("-")
    if not found[:1].isalpha():
        found = f"job-{found}" if found else "job"
    return found[: MAX_NAME - GENERATED - 1].rstrip("-")


def _set_name(job: Body, name: str | None) -> None:
    metadata = job["metadata"]
    if name is not None:
        metadata["name"] = name
    if metadata.get("name") is not None:
        metadata.pop("generateName", None)
    elif not metadata.get("generateName"):
        args = job["spec"].get("args")
        words = [word for word in args if isinstance(word, str)] if isinstance(args, list) else []
        metadata["generateName"] = f"{stem(words)}-"


def _set_program(spec: Body, options: JobOptions) -> None:
    if options.args is not None:
        spec["args"] = list(options.args)
        # The file's own program, which would win.
        spec.pop("command", None)
        if spec.get("launcher") == "none":
            del spec["launcher"]
    if options.script_args is not None:
        args = spec.get("args")
        old = program(spec, args) if isinstance(args, list) else ()
        spec["args"] = [*old, *options.script_args]


def _set_resources(spec: Body, options: JobOptions) -> None:
    wanted: dict[str, Any] = {"cpu": options.cpu, "memory": options.memory}
    replaced = [name for name, text in wanted.items() if text is not None]
    kinds = {
        part: [*filter(is_gpu, why.part(spec, "resources", part) or ())]
        for part in ("limits", "requests")
    }
    if options.gpus is not None:
        kind = next(iter(kinds["limits"]), GPU)
        replaced += [kind, *kinds["limits"], *kinds["requests"]]
        wanted[kind] = options.gpus or None
    for name in replaced:
        put(spec, ("resources", "limits", name), wanted.get(name))
        put(spec, ("resources", "requests", name), None)  # then the request is the limit
    for part in ("requests", "limits"):
        if replaced and not spec["resources"][part]:
            del spec["resources"][part]


def _add_environment(spec: Body, options: JobOptions) -> None:
    env = spec.get("env")
    if options.env and isinstance(env, list):
        spec["env"] = [each for each in env if why.text(each, "name") not in options.env]
    variables = [{"name": name, "value": value} for name, value in options.env.items()]
    _append(spec, "env", variables)
    _append(spec, "envFrom", [{"secretRef": {"name": name}} for name in options.env_from_secret])


def _append(spec: Body, field: str, items: Sequence[Any]) -> None:
    """Append those of the items to a list of the spec that it does not have."""
    if items and not isinstance(spec.get(field), list):
        spec[field] = []
    for item in items:
        if item not in spec[field]:
            spec[field].append(item)
