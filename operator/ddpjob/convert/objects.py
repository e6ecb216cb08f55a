"""Knows the kinds of objects in the input, and converts one of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddpjob.convert import trainjob
from ddpjob.convert.fields import Fields, Note, Notes, cleaned
from ddpjob.convert.pytorchjob import convert_pytorch_job
from ddpjob.convert.trainjob import convert_train_job
from ddpjob.json_depth import Body

# The kinds that can be converted, with their versions.
API_VERSIONS = {"PyTorchJob": "kubeflow.org/v1", "TrainJob": trainjob.API_VERSION}
_GROUPS = tuple(version.partition("/")[0] for version in API_VERSIONS.values())
_RULE = " or ".join(f"{kind} of {version}" for kind, version in API_VERSIONS.items())


@dataclass(frozen=True)
class Converted:
    """A DDPJob, and what is different in it."""

    job: Body
    notes: tuple[Note, ...]


def convert(body: Any, objects: Iterable[Any] = ()) -> Converted:
    """Return the DDPJob that does what the PyTorchJob or TrainJob `body` does.

    A TrainJob may refer to a runtime among the objects. The result passes `api.validate`. Raises
    InvalidJob, with path, value and rule, if `body` is no such object, or no DDPJob does what it
    does. A path that begins with `DDPJob` is one of the result.
    """
    notes = Notes()
    if not isinstance(body, dict):
        raise Fields({}, "", notes).error("(object)", f"must be an object: {_RULE}", body)
    source = Fields(cleaned(body), "", notes)
    kind, version = source.take("kind", str), source.take("apiVersion", str)
    if kind not in API_VERSIONS:
        raise source.error("kind", f"must be {_RULE}", kind)
    if version != API_VERSIONS[kind]:
        raise source.error("apiVersion", f"must be {API_VERSIONS[kind]} for a {kind}", version)
    is_pytorch = kind == "PyTorchJob"
    job = convert_pytorch_job(source) if is_pytorch else convert_train_job(source, objects)
    return Converted(job, tuple(notes))


def is_foreign(body: Any) -> bool:
    """Return whether this is an object of another group, such as a ConfigMap beside the jobs."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return False
    version = body.get("apiVersion")
    return isinstance(version, str) and version.partition("/")[0] not in _GROUPS
