"""What tables and selections need of a job: little, whatever the object has. Pure.

An object has up to 1.5 MB of JSON, of which anybody's jobs may be, and as Python's objects it takes
thirty times as much. Whoever looks at thousands of jobs keeps this of each.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

from ddpjob import names
from ddpjob.client import why
from ddpjob.json_depth import Body

# Characters of a text: those of a condition's message.
MAX_TEXT = 4096
# Kinds of GPUs of a pod, and characters of their names and amounts.
MAX_KINDS, MAX_KIND = 8, 64

_Parts: TypeAlias = Mapping[str, "_Parts | None"]
_CONDITIONS = ("Accepted", "Running", "Failed", "Complete", "Suspended")


def _parts(*words: str, **parts: _Parts) -> _Parts:
    return {**dict.fromkeys(words), **parts}


_CONDITION = _parts("type", "status", "reason", "message", "lastTransitionTime")
_FAILURE = _parts("attempt", "round", "rank", "pod", "node", "reason", "message")
_JOB = _parts(
    "apiVersion",
    "kind",
    metadata=_parts(
        *("name", "namespace", "uid", "resourceVersion", "creationTimestamp"),
        annotations=_parts(names.USER_ANNOTATION),
    ),
    spec=_parts("image", "nnodes", "nprocPerNode"),
    status=_parts(
        *("state", "attempt", "round", "restarts", "worldSize"),
        nodes=_parts("desired"),
        summary=_parts("nodes", "step", "loss", "eta", "reason", "pod", "node", "attempt"),
        progress=_parts("attempt", "round", "step", "percent"),
        failure=_FAILURE,
        goodput=_parts("since"),
    ),
)


def brief(job: Body) -> Body:
    """Return the parts of a job that a row of a table has, in bounded memory."""
    found: Body = _picked(job, _JOB) or {}
    if gpus := _gpus(why.part(job, "spec", "resources", "limits")):
        found["spec"]["resources"] = {"limits": gpus}
    ended = why.part(job, "status", "history")
    if isinstance(ended, list) and ended:
        found["status"]["history"] = [_picked(ended[-1], _parts("endTime"))]
    conditions = why.part(job, "status", "conditions")
    if isinstance(conditions, list):
        first: dict[str, Any] = {}
        for each in conditions:
            kind = each.get("type") if isinstance(each, Mapping) else None
            if kind in _CONDITIONS and kind not in first:
                first[kind] = _picked(each, _CONDITION)
        found["status"]["conditions"] = list(first.values())
    return found


def _gpus(limits: Any) -> dict[str, Any]:
    """Return the GPUs among the limits of a pod."""
    found = limits.items() if isinstance(limits, Mapping) else ()
    gpus = (pair for pair in found if len(pair[0]) < MAX_KIND and names.is_gpu(pair[0]))
    return {name: _picked(amount, None, MAX_KIND) for name, amount in islice(gpus, MAX_KINDS)}


def _picked(value: Any, parts: _Parts | None, limit: int = MAX_TEXT) -> Any:
    """Return these parts of an object, or the value itself if it is a text or a number."""
    if parts is None:
        text = value[:limit] if isinstance(value, str) else None
        return value if isinstance(value, int | float) else text
    if not isinstance(value, Mapping):
        return None
    picked = ((name, _picked(value.get(name), part)) for name, part in parts.items())
    return {name: part for name, part in picked if part is not None}
