"""Merges `spec.template` into the rendered pod, as `kubectl patch` would.

Objects are merged by field, and lists by their merge keys.
"""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob import names
from ddpjob.api.base import below, called
from ddpjob.api.messages import misfit, show
from ddpjob.api.podtypes import is_reserved
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

# Merge keys of the lists in a pod (`patchMergeKey` in the API). All other lists are replaced as a
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

# Fields of the pod that the operator sets and an overlay cannot change.
_OWN_POD_FIELDS = (
    *("hostname", "hostnameOverride", "subdomain", "restartPolicy"),
    *("activeDeadlineSeconds", "terminationGracePeriodSeconds"),
)
_OWN_CONTAINER_FIELDS = (
    *("command", "args", "restartPolicy", "restartPolicyRules"),
    *("terminationMessagePath", "terminationMessagePolicy"),
)
METADATA = ("labels", "annotations")

# The shapes of the fields that the merge and the allow-list read. A dictionary stands for an object
# with these fields, a list for a list of such items. The API server checks all other fields when it
# gets the pods.
_SECURITY = {
    "seccompProfile": {"type": str},
    "appArmorProfile": {"type": str},
    "seLinuxOptions": {},
    "capabilities": {"add": [str], "drop": [str]},
    "procMount": str,
    "sysctls": [{}],
    "windowsOptions": {},
}
_HANDLER: Body = {"httpGet": {}, "tcpSocket": {}}
_CONTAINER = {
    "name": str,
    "env": [{"name": str}],
    "ports": [{"containerPort": int, "hostPort": int}],
    "volumeMounts": [{"mountPath": str, "name": str}],
    "volumeDevices": [{"devicePath": str}],
    "securityContext": _SECURITY,
    "resources": {},
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _HANDLER),
    "lifecycle": {"postStart": _HANDLER, "preStop": _HANDLER},
}
_NAMED = [{"name": str}]
_POD: Body = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": str, "projected": {"sources": [{}]}}],
    "imagePullSecrets": _NAMED,
    "resourceClaims": _NAMED,
    "schedulingGates": _NAMED,
    "hostAliases": [{"ip": str}],
    "topologySpreadConstraints": [{"topologyKey": str}],
    "securityContext": _SECURITY,
    "nodeSelector": {},
    "tolerations": [{"key": str, "effect": str}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{}]}]
            }
        }
    },
    **dict.fromkeys(("serviceAccountName", "serviceAccount", "nodeName"), str),
    **dict.fromkeys(("priorityClassName", "runtimeClassName"), str),
}
_TEMPLATE = {"metadata": dict.fromkeys(METADATA, {}), "spec": _POD}


def apply(pod: Body, template: Mapping[str, Any]) -> tuple[Body, list[InvalidJob]]:
    """Return `pod` with `template` merged into it, and an InvalidJob for each broken rule.

    A template may not change one of the operator's own fields. If it is not an overlay of a pod, it
    is not merged. Neither argument is changed.
    """
    if problems := list(misfits(template)):
        return pod, problems
    merged: Body = merge(pod, template)
    return merged, [
        InvalidJob(
            f"spec.template.{path}", f"is set by ddpjob, cannot be {show(theirs, path)}", theirs
        )
        for path, theirs in _differences(pod, merged)
    ]


def merge(base: Any, patch: Any, field: str = "") -> Any:
    """Return `base` with `patch` merged into it by the rules of a strategic merge patch.

    An overlay adds and replaces, but removes nothing: a null would delete a field, but parsing has
    dropped nulls, as the API server does elsewhere.
    """
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = {name: merge(base.get(name), value, name) for name, value in patch.items()}
        return {**base, **merged}
    key = MERGE_KEYS.get(field)
    if not (key and is_keyed(base, key) and is_keyed(patch, key)):
        return patch
    items = {item[key]: item for item in base}
    for item in patch:
        items[item[key]] = merge(items.get(item[key]), item)
    return list(items.values())


def is_keyed(value: Any, key: str) -> bool:
    """Return whether the value is a list with this key, and not, say, a label of the same name."""
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and isinstance(item.get(key), str | int) for item in value
    )


def misfits(template: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each part that has not the shape of an overlay.

    To merge such a part would fail, or would lose something.
    """
    path = "spec.template"
    yield from _directives(template, path)
    if wrong := list(misshapen(template, path, _TEMPLATE)):
        yield from wrong
        return
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    for part, where, known in (
        (template, path, tuple(_TEMPLATE)),
        (metadata, f"{path}.metadata", METADATA),
    ):
        for name in part:
            if name not in known:
                rule = f"unknown field, must be {' or '.join(known)}"
                yield InvalidJob(where + below(name), rule)
    for kind in METADATA:
        for key, text in metadata.get(kind, {}).items():
            where = f"{path}.metadata.{kind}{called(key)}"
            if not isinstance(text, str):
                yield misfit(where, "must be a text", text)
            elif is_own_label(key):
                yield InvalidJob(where, "is set by ddpjob", text)
    if spec.get("runtimeClassName") == "":  # the API server answers 500, as if it were overloaded
        yield misfit(f"{path}.spec.runtimeClassName", "must not be empty", "")
    if "ephemeralContainers" in spec:
        yield InvalidJob(f"{path}.spec.ephemeralContainers", "cannot be set on new pods")
    for position, volume in enumerate(spec.get("volumes", [])):
        if (name := volume["name"]).startswith("ddpjob-"):
            where = f"{path}.spec.volumes[{position}].name"
            yield misfit(where, "names that begin with ddpjob- are reserved", name)


def misshapen(value: Any, path: str, shape: Any = _POD, key: str = "") -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each part that has not this shape.

    The items of a list that is merged by a key must have the key.
    """
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kind) or isinstance(value, bool) or key and key not in value:
        words = {dict: f"an object with {key}" if key else "an object", list: "a list"}
        what = words.get(kind, "an integer" if kind is int else "a text")
        yield misfit(path, f"must be {what}", value)
    elif isinstance(shape, list):
        field = path.rpartition(".")[2]
        for position, item in enumerate(value):
            yield from misshapen(item, f"{path}[{position}]", shape[0], MERGE_KEYS.get(field, ""))
    elif isinstance(shape, dict):
        for name, part in shape.items():
            if name in value:
                yield from misshapen(value[name], path + below(name), part)


def _directives(value: Any, path: str) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each directive such as `$patch`, which kubectl would follow."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name.startswith("$"):
                yield InvalidJob(path + below(name), "patch directives are not supported")
            yield from _directives(part, path + below(name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _directives(item, path + below(position))


def is_own_label(label: str) -> bool:
    """Return whether the operator sets this label or annotation itself."""
    return label == names.MANAGED_BY_LABEL or label.partition("/")[0] == names.GROUP


def _differences(pod: Body, merged: Body) -> Iterator[tuple[str, Any]]:
    """Yield (path, the overlay's value) of each of the operator's fields that it has changed."""
    for name in _OWN_POD_FIELDS:
        if pod["spec"].get(name) != merged["spec"].get(name):
            yield f"spec.{name}", merged["spec"].get(name)
    ours, theirs = trainer(pod), trainer(merged)
    where = f"spec.containers[{names.TRAINER_CONTAINER}]"
    for name in _OWN_CONTAINER_FIELDS:
        if ours.get(name) != theirs.get(name):
            yield f"{where}.{name}", theirs.get(name)
    known = {variable["name"]: variable for variable in ours["env"]}
    for variable in theirs["env"]:
        name = variable["name"]
        if is_reserved(name) and variable != known.get(name):
            yield f"{where}.env{called(name)}", variable
    mounts = {mount["mountPath"]: mount for mount in ours["volumeMounts"]}
    for mount in theirs["volumeMounts"]:
        path = mount["mountPath"]
        place = posixpath.normpath("/" + path.lstrip("/"))  # however it is spelled
        ours_too = place in mounts and mounts[place]["name"].startswith("ddpjob-")
        below = place == "/ddpjob" or place.startswith("/ddpjob/")
        if (ours_too or below) and mount != mounts.get(path):
            yield f"{where}.volumeMounts{called(path)}", mount


def trainer(pod: Body) -> Body:
    """Return the container that trains."""
    containers: list[Body] = pod["spec"]["containers"]
    return next(c for c in containers if c["name"] == names.TRAINER_CONTAINER)
