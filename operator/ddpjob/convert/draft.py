"""Puts the spec of a DDPJob together from a pod of another operator."""

from collections.abc import Callable
from copy import deepcopy

from ddpjob import names
from ddpjob.api.podtypes import VOLUME_SOURCES
from ddpjob.convert.pod import Pod
from ddpjob.json_depth import Body

# The fields of the trainer's container that a DDPJob's spec has itself.
_OF_TRAINER = ("image", "imagePullPolicy", "env", "envFrom", "resources")
_SOURCES = frozenset({"name", *VOLUME_SOURCES})
_MOUNT = frozenset({"name", "mountPath", "subPath", "subPathExpr", "readOnly"})


def spec_of(pod: Pod) -> Body:
    """Return the fields of a DDPJob's spec that make its pods like `pod`.

    What the spec does not have itself is in `template`. Only `command` is missing, because it may
    depend on the number of processes.
    """
    template = deepcopy(pod.template)
    parts, trainer = template["spec"], template["spec"]["containers"][0]
    spec: Body = {} if pod.program.launcher == "torchrun" else {"launcher": pod.program.launcher}
    if pod.program.args:
        spec["args"] = list(pod.program.args)
    spec |= {name: trainer.pop(name) for name in _OF_TRAINER if name in trainer}
    _move(parts, "imagePullSecrets", spec, lambda item: set(item) == {"name"})
    _move(parts, "volumes", spec, lambda item: set(item) <= _SOURCES)
    _move(trainer, "volumeMounts", spec, lambda item: set(item) <= _MOUNT)
    fields = {"masterPort": pod.port, "terminationGracePeriodSeconds": pod.grace}
    spec |= {name: value for name, value in fields.items() if value is not None}
    spec |= {"shm": pod.shm} if pod.shm else {}
    overlay = without_bare_trainer(template)
    return spec | ({"template": overlay} if overlay else {})


def _move(source: Body, name: str, spec: Body, fits: Callable[[Body], bool]) -> None:
    """Move the items that `spec` can have itself; the others stay in the overlay.

    A value that is no list of objects is moved as a whole, and the check of the result refuses it.
    """
    items = source.pop(name, None)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        spec |= {} if items is None else {name: items}
        return
    moved, left = [item for item in items if fits(item)], [item for item in items if not fits(item)]
    spec |= {name: moved} if moved else {}
    source |= {name: left} if left else {}


def without_bare_trainer(overlay: Body) -> Body:
    """Return the overlay without empty parts, and without a trainer that has nothing but a name."""
    bare = {"name": names.TRAINER_CONTAINER}
    spec = dict(overlay.get("spec") or {})
    containers = [item for item in spec.pop("containers", []) if item != bare]
    spec |= {"containers": containers} if containers else {}
    found = {**overlay, "spec": spec}
    return {name: part for name, part in found.items() if part}
