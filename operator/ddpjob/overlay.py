"""Lays `spec.template` over the rendered pod, the way `kubectl patch` would.

Maps merge, lists merge by their keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddpjob import keys
from ddpjob.errors import InvalidJob
from ddpjob.podtypes import is_reserved

Body = dict[str, Any]

# Merge keys of the lists in a pod (`patchMergeKey` in the API); every other list is replaced as a
# whole.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
}

# What the operator sets and an overlay cannot have otherwise, as paths in the pod.
_OWN_POD_FIELDS = ("hostname", "subdomain", "restartPolicy", "terminationGracePeriodSeconds")
_OWN_CONTAINER_FIELDS = ("command", "args", "terminationMessagePath", "terminationMessagePolicy")
_METADATA = ("labels", "annotations")


def apply(pod: Body, template: Mapping[str, Any]) -> Body:
    """`pod` with `template` merged into it; neither is changed.

    Raises InvalidJob, with the path, where the template wants one of the operator's own fields
    otherwise, or is no pod overlay at all.
    """
    for problem in _misfits(template):
        raise problem
    merged: Body = merge(pod, template)
    for path, ours, theirs in _differences(pod, merged):
        rule = f"is set by ddpjob to {ours!r}, cannot be {theirs!r}"
        raise InvalidJob(f"spec.template.{path}", rule, theirs)
    return merged


def merge(base: Any, patch: Any, field: str = "") -> Any:
    """`patch` over `base` by the rules of a strategic merge; null deletes."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = {name: merge(base.get(name), value, name) for name, value in patch.items()}
        result = {**base, **merged}
        return {name: value for name, value in result.items() if value is not None}
    key = MERGE_KEYS.get(field)
    if key and isinstance(base, Sequence) and isinstance(patch, Sequence):
        return _merge_list(base, patch, key)
    if isinstance(patch, Mapping):
        return {
            name: merge(None, value, name) for name, value in patch.items() if value is not None
        }
    return patch


def _merge_list(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    items = {item.get(key): item for item in base}
    for item in patch:
        name = item.get(key)
        items[name] = merge(items.get(name), item) if name in items else merge(None, item)
    return list(items.values())


def _misfits(template: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """What has not even the shape of an overlay.

    So that merging it would fail or lose something.
    """
    allowed: dict[str, tuple[str, ...] | None] = {"metadata": _METADATA, "spec": None}
    for name, value in template.items():
        if name not in allowed:
            yield InvalidJob(f"spec.template.{name}", "unknown field: metadata and spec are known")
        elif not isinstance(value, Mapping):
            yield InvalidJob(f"spec.template.{name}", f"must be an object, got {value!r}", value)
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for name, value in metadata.items():
        path = f"spec.template.metadata.{name}"
        if name not in _METADATA:
            yield InvalidJob(path, "unknown field: labels and annotations are known")
        elif not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            yield InvalidJob(path, "must be an object whose values are strings", value)
        else:
            for label in value:
                if _is_own(label):
                    yield InvalidJob(f"{path}[{label}]", "is set by ddpjob", value)
    yield from _broken_lists(spec, "spec.template.spec")
    if "ephemeralContainers" in spec:
        yield InvalidJob("spec.template.spec.ephemeralContainers", "cannot be set on new pods")
    for position, volume in enumerate(spec.get("volumes") or []):
        if str(volume["name"]).startswith("ddpjob-"):
            path = f"spec.template.spec.volumes[{position}].name"
            yield InvalidJob(path, "names that begin with ddpjob- are reserved", volume["name"])


def _broken_lists(value: Any, path: str) -> Iterator[InvalidJob]:
    if not isinstance(value, Mapping):
        return
    for name, part in value.items():
        key = MERGE_KEYS.get(name)
        if key and not isinstance(part, list):
            yield InvalidJob(f"{path}.{name}", f"must be a list, got {part!r}", part)
        elif key:
            for position, item in enumerate(part):
                here = f"{path}.{name}[{position}]"
                if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
                    yield InvalidJob(here, f"must be an object with {key}", item)
                else:
                    yield from _broken_lists(item, here)
        elif isinstance(part, Mapping) and part.get("$patch"):
            yield InvalidJob(f"{path}.{name}.$patch", "patch directives are not supported")
        else:
            yield from _broken_lists(part, f"{path}.{name}")


def _is_own(label: str) -> bool:
    return label == keys.MANAGED_BY_LABEL or label.partition("/")[0] == keys.GROUP


def _differences(pod: Body, merged: Body) -> Iterator[tuple[str, Any, Any]]:
    """(path, ours, theirs) of everything of ours that the overlay has changed."""
    for name in _OWN_POD_FIELDS:
        if pod["spec"].get(name) != merged["spec"].get(name):
            yield f"spec.{name}", pod["spec"].get(name), merged["spec"].get(name)
    ours, theirs = _trainer(pod), _trainer(merged)
    where = f"spec.containers[{keys.TRAINER_CONTAINER}]"
    for name in _OWN_CONTAINER_FIELDS:
        if ours.get(name) != theirs.get(name):
            yield f"{where}.{name}", ours.get(name), theirs.get(name)
    known = {variable["name"]: variable for variable in ours["env"]}
    for variable in theirs["env"]:
        name = variable["name"]
        if is_reserved(name) and variable != known.get(name):
            yield f"{where}.env[{name}]", known.get(name), variable
    mounts = {mount["mountPath"]: mount for mount in ours["volumeMounts"]}
    for mount in theirs["volumeMounts"]:
        path = mount["mountPath"]
        ours_too = path in mounts and mounts[path]["name"].startswith("ddpjob-")
        below = path == "/ddpjob" or str(path).startswith("/ddpjob/")
        if (ours_too or below) and mount != mounts.get(path):
            yield f"{where}.volumeMounts[{path}]", mounts.get(path), mount


def _trainer(pod: Body) -> Body:
    containers: list[Body] = pod["spec"]["containers"]
    return next(c for c in containers if c["name"] == keys.TRAINER_CONTAINER)
