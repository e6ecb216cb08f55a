"""The model of a whole DDPJob, its bounds, and every check of a file."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddpjob.api.base import DNS_SUBDOMAIN, NAMESPACE, Broken, Model, Rule, below, broken_rules
from ddpjob.api.meant import unknown_field
from ddpjob.api.messages import MAX_PROBLEMS, explain, show
from ddpjob.api.new_jobs import problems_beside, problems_of
from ddpjob.api.spec import MAX_OVERLAY_BYTES, MAX_SPEC_BYTES, Spec
from ddpjob.api.status import Status, read_status
from ddpjob.api.unjudged import unjudged
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


def _name(name: str) -> str:
    if broken := [Broken(rule.message) for rule in NAME_RULES if not rule.holds(name)]:
        raise broken_rules(*broken)
    return name


_LABEL = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_KEY_RULE = "the key must be <name> or <domain>/<name>"
_LABEL_RULE = (
    "must be at most 63 letters, digits, '-', '_' and '.', and must begin and end with a letter or "
    "a digit"
)


def _broken_keys(annotations: Mapping[str, str]) -> Iterator[Broken]:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        if not re.fullmatch(_LABEL, name) or slash and not re.fullmatch(DNS_SUBDOMAIN, prefix):
            yield Broken(_KEY_RULE, below(key), key)


def _keys(annotations: dict[str, str]) -> dict[str, str]:
    if broken := list(_broken_keys(annotations)):
        raise broken_rules(*broken)
    return annotations


def _labels(labels: dict[str, str]) -> dict[str, str]:
    values = (
        Broken(_LABEL_RULE, below(key), value)
        for key, value in labels.items()
        if not re.fullmatch(f"({_LABEL})?", value)
    )
    if broken := [*_broken_keys(labels), *values]:
        raise broken_rules(*broken)
    return labels


class Metadata(Model):
    """The part of an object's metadata that ddpjob reads."""

    model_config = {"extra": "ignore"}

    name: Annotated[str, AfterValidator(_name)]
    namespace: Annotated[str, Field(max_length=63, pattern=NAMESPACE)] = ""
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = {}
    annotations: Annotated[dict[str, str], AfterValidator(_keys)] = {}


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
    def parse(cls, obj: Mapping[str, Any]) -> "DDPJob":
        """Return the job that `obj` (parsed YAML or JSON) describes, with all defaults.

        Raises the first InvalidJob of `validate`.
        """
        rest = {name: part for name, part in obj.items() if name != "metadata"}
        for problem in chain(oversize(obj), _too_deep(rest)):
            raise problem
        try:
            return cls.model_validate(_read(obj))
        except ValidationError as error:
            raise explain(cls, error, most=1)[0] from None


def validate(obj: Any) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that `obj` breaks.

    The list is empty for a job that the API server accepts.
    """
    if not isinstance(obj, Mapping):
        return [InvalidJob("(file)", f"must be a DDPJob object, got {show(obj)}", obj)]
    # All other checks take longer for larger objects, so they come after the checks of the size.
    if problems := list(oversize(obj)) or list(_too_deep(obj)):
        return problems
    problems = [*_unknown_metadata(obj.get("metadata")), *_unknown_nulls(obj)]
    read = _read(obj)
    try:
        spec = DDPJob.model_validate(read).spec
        problems += problems_of(spec.failure_policy, spec.world_size)
    except ValidationError as error:
        problems += explain(DDPJob, error)
        problems += unjudged(DDPJob, read, error)
        problems += problems_beside(error, read.get("spec"))
    return problems[:MAX_PROBLEMS]


def with_defaults(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return `obj` as the API server would store it. Raises InvalidJob."""
    job = DDPJob.parse(obj)
    for problem in problems_of(job.spec.failure_policy, job.spec.world_size):
        raise problem
    return {**obj, "spec": job.spec.to_json()}


_METADATA_FIELDS = {
    *("name", "generateName", "namespace", "labels", "annotations", "finalizers"),
    *("ownerReferences", "uid", "resourceVersion", "generation", "selfLink", "managedFields"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
}


def _unknown_metadata(metadata: Any) -> list[InvalidJob]:
    """Return the fields that no object has.

    The models ignore them, because a later Kubernetes may have more fields.
    """
    unknown = set(metadata) - _METADATA_FIELDS if isinstance(metadata, Mapping) else set()
    found = []
    for name in sorted(map(str, unknown))[:MAX_PROBLEMS]:
        value = metadata[name]
        rule = f"{unknown_field(name, _METADATA_FIELDS)}, got {show(value)}"
        found.append(InvalidJob(f"metadata{below(name)}", rule, value))
    return found


def _unknown_nulls(obj: Mapping[str, Any]) -> list[InvalidJob]:
    """Return unknown fields that are null: the API server refuses them before it drops nulls."""
    try:
        DDPJob.model_validate(obj)
    except ValidationError as error:
        found = explain(DDPJob, error)
        return [p for p in found if p.value is None and p.rule.startswith("unknown field")]
    return []


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
            yield InvalidJob(path, f"must be JSON ({error}), got {show(part)}", part)
        return
    if size > most:
        yield InvalidJob(path, f"must be at most {most} {what}, is {size}, got {show(part)}", part)


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
    found = {
        name: part if name == "metadata" else _without_nulls(part) for name, part in obj.items()
    }
    if isinstance(metadata := found.get("metadata"), Mapping):
        found["metadata"] = _without_nulls({name: metadata.get(name) for name in _METADATA_READ})
    return {name: part for name, part in found.items() if part is not None}


def _without_nulls(value: Any) -> Any:
    """Return `value` without nulls, which the API server drops before it fills in defaults.

    The API server keeps nulls in the overlay. They are dropped there too, so that an overlay cannot
    delete fields that ddpjob sets for safety.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
