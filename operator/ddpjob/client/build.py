"""Makes the object of a job from what a command line, or a call of the SDK, says about it. Pure.

`submit` and `launch` share it. What is said overrides a job that was read from a file.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ddpjob import names
from ddpjob.api.job import MAX_NAME, validate
from ddpjob.client import why
from ddpjob.client.edits import program
from ddpjob.client.generated import GENERATED
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

    Without a name it has `generateName`. Raises InvalidJob for a part of `base` that is of another
    type; `problems` finds what else is wrong with the job.
    """
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": None, "spec": None}
    job: Body = head if base is None else deepcopy(dict(base))
    job.pop("status", None)
    spec = job["spec"] = _object(job, "spec")
    _set_program(spec, options)
    plain = {
        "image": options.image,
        "nnodes": options.nnodes,
        "nprocPerNode": options.nproc_per_node,
        "hangTimeoutSeconds": options.hang_timeout_seconds,
    }
    spec.update({name: value for name, value in plain.items() if value is not None})
    _set_resources(spec, options)
    _set_environment(spec, options)
    if options.checkpoint is not None:
        spec["checkpoint"] = _checkpoint(_object(spec, "checkpoint", "spec."), options.checkpoint)
    if options.max_restarts is not None:
        policy = spec["failurePolicy"] = _object(spec, "failurePolicy", "spec.")
        policy["maxRestarts"] = options.max_restarts
    if options.image_pull_secrets:
        secrets = _list(spec, "imagePullSecrets")
        known = [secret.get("name") for secret in secrets if isinstance(secret, Mapping)]
        wanted = dict.fromkeys(options.image_pull_secrets)
        spec["imagePullSecrets"] = secrets + [{"name": n} for n in wanted if n not in known]
    _set_name(job, options.name)
    if options.labels:
        metadata = job["metadata"]
        metadata["labels"] = {**_object(metadata, "labels", "metadata."), **options.labels}
    return job


def problems(job: Any) -> list[InvalidJob]:
    """Return an InvalidJob for each rule of the API server that the job breaks."""
    metadata = job.get("metadata") if isinstance(job, Mapping) else None
    if isinstance(metadata, Mapping) and not metadata.get("name") and metadata.get("generateName"):
        job = {
            **job,
            "metadata": {**metadata, "name": f"{metadata['generateName']}{'x' * GENERATED}"},
        }
    return validate(job)


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
    metadata = job["metadata"] = _object(job, "metadata")
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
        spec["args"] = [*program(spec, _list(spec, "args")), *options.script_args]


def _set_resources(spec: Body, options: JobOptions) -> None:
    wanted: dict[str, Any] = {"cpu": options.cpu, "memory": options.memory}
    wanted = {name: text for name, text in wanted.items() if text is not None}
    if not wanted and options.gpus is None:
        return
    resources = spec["resources"] = _object(spec, "resources", "spec.")
    limits = resources["limits"] = _object(resources, "limits", "spec.resources.")
    requests = resources["requests"] = _object(resources, "requests", "spec.resources.")
    if options.gpus is not None:
        kinds = [name for name in limits if is_gpu(name)]
        for name in {*kinds, *filter(is_gpu, requests)}:
            limits.pop(name, None)
            requests.pop(name, None)
        if options.gpus:
            wanted[kinds[0] if kinds else GPU] = options.gpus
    for name, amount in wanted.items():
        limits[name] = amount
        requests.pop(name, None)  # then the request is the limit
    for part in ("requests", "limits"):
        if not resources[part]:
            del resources[part]


def _set_environment(spec: Body, options: JobOptions) -> None:
    if options.env:
        kept = [
            variable
            for variable in _list(spec, "env")
            if not (isinstance(name := why.part(variable, "name"), str) and name in options.env)
        ]
        new: list[Any] = [{"name": name, "value": value} for name, value in options.env.items()]
        spec["env"] = kept + new
    if options.env_from_secret:
        sources = _list(spec, "envFrom")
        new = [{"secretRef": {"name": name}} for name in dict.fromkeys(options.env_from_secret)]
        spec["envFrom"] = sources + [source for source in new if source not in sources]


def _checkpoint(checkpoint: Body, text: str) -> Body:
    claim, colon, path = text.partition(":")
    checkpoint["volume"] = {"persistentVolumeClaim": {"claimName": claim}}
    return {**checkpoint, "mountPath": path} if colon else checkpoint


def _object(parent: Body, name: str, where: str = "") -> Body:
    """Return a copy of the object at a field, empty if there is none. Raises InvalidJob."""
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidJob(f"{where}{name}", "must be an object", found)
    return dict(found)


def _list(spec: Body, name: str) -> list[Any]:
    found = spec.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidJob(f"spec.{name}", "must be a list", found)
    return list(found)
