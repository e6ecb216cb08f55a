"""Changes of a job's spec as people say them: `failurePolicy.maxRestarts=5`, not on node gpu-17.

Pure. Bodies are as they were stored, so their parts may be of any type where the schema is open.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import orjson

from ddpjob import names, why
from ddpjob.cluster import is_name
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

# A dot that no backslash precedes.
_DOT = re.compile(r"(?<!\\)\.")
# Where a pod's template has the terms of its nodes.
_TERMS = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
# Characters of a job's name, as `api.MAX_NAME` has them behind a slow import.
MAX_NAME = 52
# What a new object does not take over from the one that it is like.
_OWN_ANNOTATIONS = (
    names.USER_ANNOTATION,
    names.PREVIOUS_CODE_ANNOTATION,
    "kubectl.kubernetes.io/last-applied-configuration",
)


def with_settings(spec: Mapping[str, Any], settings: Iterable[str]) -> Body:
    r"""Return the spec with settings, such as `nnodes=4` or `env.LR=0.1`. Raises InvalidJob.

    A value is JSON, or else the text itself; null removes the field. Variables of `env` are texts.
    A backslash keeps a dot within a name: `resources.limits.nvidia\.com/gpu=4`.
    """
    found = deepcopy(dict(spec))
    for setting in settings:
        field, equals, text = setting.partition("=")
        path = [part.replace("\\.", ".") for part in _DOT.split(field.removeprefix("spec."))]
        if not equals or not all(path):
            rule = f"must be FIELD=VALUE, such as nnodes=4, got {setting!r}"
            raise InvalidJob("--set", rule, setting)
        if path[0] == "env" and len(path) == 2:
            env = found["env"] = [*(found.get("env") or ())]
            at = next((at for at, each in enumerate(env) if each["name"] == path[1]), len(env))
            env[at : at + 1] = [{"name": path[1], "value": text}]
        else:
            put(found, path, _value(text))
    return found


def without_nodes(spec: Mapping[str, Any], nodes: Sequence[str]) -> Body:
    """Return the spec with pods kept off these nodes, whatever else they ask of their node.

    Raises InvalidJob for what is no name of a node.
    """
    for node in nodes:
        if not is_name(node):
            raise InvalidJob("--exclude-node", f"must be the name of a node, got {node!r}", node)
    found = deepcopy(dict(spec))
    if not nodes:
        return found
    templates = [found.setdefault("template", {})]
    own = why.part(found, "master", "template")
    # A list of rank 0's own would replace that of all pods.
    if why.part(own, *_TERMS, "nodeSelectorTerms"):
        templates.append(own)
    off = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    for parent in templates:
        for name in _TERMS:
            parent = parent.setdefault(name, {})
        for term in parent.setdefault("nodeSelectorTerms", [{}]):  # each is an alternative
            fields = term.setdefault("matchFields", [])
            fields += [each for each in off if each not in fields]
    return found


def with_script_args(spec: Mapping[str, Any], words: Sequence[str]) -> Body:
    """Return the spec with other arguments for its script. Raises InvalidJob without a script."""
    args = spec.get("args") or []
    if not args:
        rule = "is empty, so there is no script that takes other arguments; set args as a whole"
        raise InvalidJob("spec.args", rule, args)
    return {**spec, "args": [*program(spec, args), *words]}


def program(spec: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
    """Return the script, or `-m` and the module, with which these arguments begin."""
    first = str(args[0]) if args else ""
    if first == "-m":
        return args[:2]
    # The script may be in the command, or in the image: then all are its arguments.
    is_script = first.endswith(".py") and " " not in first
    if not spec.get("command"):
        is_script = is_script or not first.startswith("-")
    return args[:1] if is_script else ()


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Body:
    """Return the JSON merge patch that makes `after` of `before`."""
    patch: Body = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if changes := merge_patch(old, value):
                patch[name] = changes
        elif name not in before or _json(old) != _json(value):  # to Python True is 1
            patch[name] = value
    return patch


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def rerun(job: Mapping[str, Any], spec: Mapping[str, Any], name: str) -> Body:
    """Return a new job of this name like `job`, with another spec."""
    metadata = job["metadata"]
    annotations = {**metadata.get("annotations", {}), names.RERUN_ANNOTATION: origin(job)}
    for own in _OWN_ANNOTATIONS:
        annotations.pop(own, None)
    kept = {field: metadata[field] for field in ("namespace", "labels") if metadata.get(field)}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    new = {field: value for field, value in spec.items() if field != "suspend"}
    return {**head, "metadata": {"name": name, **kept, "annotations": annotations}, "spec": new}


def origin(job: Mapping[str, Any]) -> str:
    """Return the name of the job of which this one is a rerun, or its own name."""
    name: str = job["metadata"]["name"]
    first: str = job["metadata"].get("annotations", {}).get(names.RERUN_ANNOTATION, "")
    # Anybody may write the annotation; it counts where the name was made of it.
    stem, dash, number = name.rpartition("-")
    return first if first and dash and number.isdecimal() and first.startswith(stem) else name


def rerun_name(first: str, number: int) -> str:
    """Return the name of the run with this number, from 2, cut to what a job's name may have."""
    suffix = f"-{number}"
    return first[: MAX_NAME - len(suffix)].rstrip("-") + suffix


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def put(body: Body, path: Sequence[str], value: Any) -> None:
    """Set a field, or remove it for None. What has no fields becomes an object."""
    *parents, last = path
    for name in parents:
        if not isinstance(body.get(name), dict):
            body[name] = {}
        body = body[name]
    if value is None:
        body.pop(last, None)
    else:
        body[last] = value
