"""The model of a whole DDPJob, its bounds, and every check of a file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddpjob.api.base import NAMESPACE, Model, Rule, keeps
from ddpjob.api.failure_policy import broken_expressions, fits_nothing
from ddpjob.api.messages import explain, misfit
from ddpjob.api.spec import MAX_OVERLAY_BYTES, MAX_SPEC_BYTES, Spec
from ddpjob.api.status import Status
from ddpjob.api.status_reader import read_status
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import MAX_LEVELS, is_deep

# A hostname has 63 characters, so `-<attempt>-<rank>` may have 11.
MAX_NAME = 52
_DNS_1035 = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

# The rules for a job's name; `holds` takes the name. Their CEL stands at the root of the schema,
# because only there a rule can read the metadata.
NAME_RULES = (
    Rule(
        f"size(self.metadata.name) <= {MAX_NAME}",
        lambda name: len(name) <= MAX_NAME,
        f"must be at most {MAX_NAME} characters: <name>-<attempt>-<rank> is a hostname",
        "metadata.name",
    ),
    Rule(
        f"self.metadata.name.matches('{_DNS_1035}')",
        lambda name: bool(re.fullmatch(_DNS_1035, name)),
        "must be a DNS-1035 label (a Service has that name): lower-case letters, digits and '-', "
        "beginning with a letter",
        "metadata.name",
    ),
)


class Metadata(Model):
    """The part of an object's metadata that ddpjob reads."""

    model_config = {"extra": "ignore"}

    name: Annotated[str, keeps(*NAME_RULES)]
    namespace: Annotated[str, Field(max_length=63, pattern=NAMESPACE)] = ""
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


_METADATA_READ = tuple(to_camel(name) for name in Metadata.model_fields)


class DDPJob(Model):
    """A DDPJob is a distributed PyTorch training on `spec.nnodes` pods, which run torchrun."""

    api_version: Literal["ddpjob.dev/v1alpha1"]
    kind: Literal["DDPJob"]
    metadata: Metadata
    spec: Spec
    status: Annotated[Status, BeforeValidator(read_status)] = Status()

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """Return the job's uid. An earlier job of the same name had another uid."""
        return self.metadata.uid

    @classmethod
    def parse(cls, obj: Mapping[str, Any], *, is_stored: bool = False) -> "DDPJob":
        """Return the job that `obj` (parsed YAML or JSON) describes, with all defaults.

        Unknown fields of one that an API server has stored are of a newer definition, whose
        defaults every job gets at once, and are left out. In a list they are not: a rule or a peer
        without one of its fields would fit more than is meant.

        Raises the first InvalidJob of `validate`.
        """
        rest = {name: part for name, part in obj.items() if name != "metadata"}
        for problem in chain(oversize(obj), _too_deep(rest)):
            raise problem
        try:
            return cls.model_validate(_read(obj))
        except ValidationError as error:
            newer = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            fields = [path for path in newer if all(isinstance(part, str) for part in path)]
            if is_stored and fields:
                return cls.parse(_without(obj, fields))
            raise explain(cls, error, most=1)[0] from None


def _without(obj: Mapping[str, Any], fields: Iterable[Sequence[int | str]]) -> dict[str, Any]:
    """Return `obj` without the fields at these paths."""
    found: dict[str, Any] = {**obj}
    for *parents, name in fields:
        place: Any = found
        for parent in parents:
            place[parent] = {**place[parent]}
            place = place[parent]
        del place[name]
    return found


def validate(obj: Any) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that `obj` breaks.

    The list is empty for a job that the API server accepts. As there, rules over several fields are
    checked once all fields of their object are right.
    """
    if not isinstance(obj, Mapping):
        return [misfit("(file)", "must be a DDPJob object", obj)]
    # All other checks take longer for larger objects, so they come after the checks of the size.
    if problems := list(oversize(obj)) or list(_too_deep(obj)):
        return problems
    try:
        return _unfit_for_new(DDPJob.model_validate(_read(obj)))
    except ValidationError as error:
        return explain(DDPJob, error)


def with_defaults(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return `obj` as the API server would store it. Raises InvalidJob."""
    job = DDPJob.parse(obj)
    for problem in _unfit_for_new(job):
        raise problem
    return {**obj, "spec": job.spec.to_json()}


def _unfit_for_new(job: DDPJob) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that a new job must keep, and that a stored one may break.

    The operator must not stop at a stored job that is older than a rule, so parsing does not check
    these rules. A rule of `failurePolicy` that breaks one of them fits no failure.
    """
    policy = job.spec.failure_policy
    return [*fits_nothing(policy), *broken_expressions(policy)]


def oversize(obj: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each part of the spec that has too many bytes."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return
    master = spec.get("master")
    rest = {name: part for name, part in spec.items() if name != "template"}
    parts = [("spec.template", spec.get("template"))]
    if isinstance(master, Mapping):
        parts.append(("spec.master.template", master.get("template")))
        rest["master"] = {name: part for name, part in master.items() if name != "template"}
    for path, part in parts:
        yield from _larger(path, part, MAX_OVERLAY_BYTES, "bytes as JSON")
    beside = "bytes as JSON beside template and master.template"
    yield from _larger("spec", rest, MAX_SPEC_BYTES, beside)


def _larger(path: str, part: Any, most: int, what: str) -> Iterator[InvalidJob]:
    try:
        size = len(orjson.dumps(part))
    except orjson.JSONEncodeError as error:
        if not is_deep(part):  # the next check finds deep parts
            yield misfit(path, f"must be JSON ({error})", part)
        return
    if size > most:
        yield misfit(path, f"must be at most {most} {what}, is {size}", part)


def _too_deep(obj: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each part whose objects are nested too deeply."""
    if is_deep(obj):
        spec = obj.get("spec")
        parts = spec.items() if isinstance(spec, Mapping) else ()
        paths = [f"spec.{name}" for name, part in parts if is_deep(part, MAX_LEVELS - 2)]
        for path in paths or ["(object)"]:
            yield InvalidJob(path, f"must have at most {MAX_LEVELS} objects within each other")


def _read(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return `obj` as the models read it: without nulls, and with the metadata that they have."""
    metadata = obj.get("metadata")
    if isinstance(metadata, Mapping):
        metadata = {name: metadata.get(name) for name in _METADATA_READ}
    found: dict[str, Any] = _without_nulls({**obj, "metadata": metadata})
    return found


def _without_nulls(value: Any) -> Any:
    """Return `value` without nulls, which the API server drops before it fills in defaults.

    The API server keeps nulls in the overlay. They are dropped there too, so that an overlay cannot
    delete fields that ddpjob sets for safety.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
