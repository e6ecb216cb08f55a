"""Knows the kinds of objects in the input, and converts one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddpjob.convert import runtimes
from ddpjob.convert.fields import Fields, Note, Notes, without_nulls
from ddpjob.convert.pytorchjob import convert_pytorch_job
from ddpjob.convert.runtimes import Runtimes
from ddpjob.convert.trainjob import convert_train_job
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import MAX_LEVELS, Body, is_deep

# The kinds that can be converted, with their versions.
PYTORCH_JOB, TRAIN_JOB = "PyTorchJob", "TrainJob"
API_VERSIONS = {PYTORCH_JOB: "kubeflow.org/v1", TRAIN_JOB: runtimes.API_VERSION}
_GROUPS = tuple(version.partition("/")[0] for version in API_VERSIONS.values())
_RULE = " or ".join(f"{kind} of {version}" for kind, version in API_VERSIONS.items())


@dataclass(frozen=True)
class Converted:
    """A DDPJob, and what is different in it."""

    job: Body
    notes: tuple[Note, ...]


def convert(body: Any, known: Runtimes | None = None) -> Converted:
    """Return the DDPJob that does what the PyTorchJob or TrainJob `body` does.

    `known` are the runtimes to which a TrainJob may refer, beside those that Trainer ships. The
    result passes `api.validate`. Raises InvalidJob, with path, value and rule, if `body` is no such
    object, or no DDPJob does what it does. A path that begins with `DDPJob` is one of the result.
    """
    if not isinstance(body, dict):
        raise Fields({}, "", Notes()).error("(object)", f"must be an object: {_RULE}", body)
    if is_deep(body):
        raise InvalidJob("(object)", f"must have at most {MAX_LEVELS} objects within each other")
    notes = Notes()
    source = Fields(without_nulls(body), "", notes)
    kind, version = source.take("kind", str), source.take("apiVersion", str)
    if kind not in API_VERSIONS:
        raise source.error("kind", f"must be {_RULE}", kind)
    if version != API_VERSIONS[kind]:
        raise source.error("apiVersion", f"must be {API_VERSIONS[kind]} for a {kind}", version)
    if kind == PYTORCH_JOB:
        job = convert_pytorch_job(source)
    else:
        job = convert_train_job(source, known or Runtimes())
    return Converted(job, tuple(notes))


def flattened(document: Any) -> Iterator[Any]:
    """Yield the objects of a list such as `kubectl get -o yaml` prints, or the document itself."""
    is_list = isinstance(document, dict) and str(document.get("kind")).endswith("List")
    if is_list and isinstance(document.get("items"), list):
        yield from document["items"]
    else:
        yield document


def runtimes_of(objects: Iterable[Any]) -> Runtimes:
    """Return the training runtimes among these objects."""
    return Runtimes(
        without_nulls(body) for body in objects if is_runtime(body) and not is_deep(body)
    )


def is_runtime(body: Any) -> bool:
    """Return whether this is a training runtime, to which TrainJobs refer."""
    return (
        isinstance(body, dict)
        and body.get("apiVersion") == runtimes.API_VERSION
        and body.get("kind") in (runtimes.CLUSTER_KIND, runtimes.KIND)
    )


def is_foreign(body: Any) -> bool:
    """Return whether this is an object of another group, such as a ConfigMap beside the jobs."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return False
    version = body.get("apiVersion")
    return isinstance(version, str) and version.partition("/")[0] not in _GROUPS
