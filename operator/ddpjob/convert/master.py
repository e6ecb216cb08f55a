"""Finds what makes the pod of rank 0 of the pod of all others."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ddpjob import names
from ddpjob.convert.draft import without_bare_trainer
from ddpjob.convert.fields import Notes
from ddpjob.convert.pod import Pod
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods.overlay import MERGE_KEYS, is_keyed

# Where rank 0 may have more than it asked for, because an overlay can remove nothing.
_OPEN = ("", "metadata", "labels", "annotations", "spec", "nodeSelector")
_CONTAINERS = ("containers", "initContainers")


def master_of(others: Pod, master: Pod, notes: Notes) -> Body:
    """Return the value of `spec.master` that makes the pod of rank 0 like `master`.

    It is empty if the two pods are equal. Raises InvalidJob, with the path, if one DDPJob cannot
    have both pods.
    """
    if others.program != master.program:
        rule = "must be as in the Master, because all nodes of a DDPJob run the same program"
        raise InvalidJob(f"{others.trainer_path}.command", rule)
    for is_same, where in (
        (others.shm == master.shm, f"{master.trainer_path}.volumeMounts[/dev/shm]"),
        (others.grace == master.grace, f"{master.path}.spec.terminationGracePeriodSeconds"),
    ):
        if not is_same:
            notes.changed(where, "the Worker has another, and all pods get that")
    bodies = deepcopy((others.template, master.template))
    resources = [body["spec"]["containers"][0].pop("resources", {}) for body in bodies]
    overlay = _Difference(others, notes).of_objects(*bodies, others.path, "")
    found: Body = {} if resources[0] == resources[1] else {"resources": resources[1]}
    for container in overlay.get("spec", {}).get("containers", []):
        if container["name"] == names.TRAINER_CONTAINER and "image" in container:
            found["image"] = container.pop("image")
    overlay = without_bare_trainer(overlay)
    return found | ({"template": overlay} if overlay else {})


class _Difference:
    """Makes overlays, and notes what they cannot remove."""

    def __init__(self, others: Pod, notes: Notes) -> None:
        self._others, self._notes = others, notes

    def of(self, base: Any, wanted: Any, path: str, field: str) -> Any:
        """Return the part of an overlay that makes `wanted` of `base`; None if they are equal."""
        if isinstance(base, Mapping) and isinstance(wanted, Mapping):
            return self.of_objects(base, wanted, path, field) or None
        key = MERGE_KEYS.get(field, "")
        if key and is_keyed(base, key) and is_keyed(wanted, key):
            return self._of_lists(base, wanted, path, field) or None
        return None if base == wanted else wanted

    def of_objects(
        self, base: Mapping[str, Any], wanted: Mapping[str, Any], path: str, field: str
    ) -> Body:
        """Return the overlay of an object, whose field in the pod is `field`."""
        found = {}
        for name, value in wanted.items():
            part = value
            if name in base:
                part = self.of(base[name], value, f"{path}.{name}", name)
            if part is not None:
                found[name] = part
        for name in base:
            if name not in wanted:
                self._keep(f"{path}.{name}", is_open=field in (*_OPEN, *_CONTAINERS))
        return found

    def _of_lists(self, base: list[Any], wanted: list[Any], path: str, field: str) -> list[Body]:
        key = MERGE_KEYS[field]
        if base == wanted:
            return []
        for items in (base, wanted):
            if len({item[key] for item in items}) < len(items):
                rule = f"must be as in the Master, or have each {key} once"
                raise InvalidJob(path, rule)
        known = {item[key]: item for item in base}
        found = []
        for item in wanted:
            own = known.pop(item[key], None)
            if own is None:
                found.append(item)
            else:
                within = field if field in _CONTAINERS else "item"
                if part := self.of_objects(own, item, f"{path}[{item[key]}]", within):
                    found.append({key: item[key], **part})
        for name in known:
            self._keep(f"{path}[{name}]", is_open=True)
        return found

    def _keep(self, path: str, *, is_open: bool) -> None:
        """Note what only the others have. Raises InvalidJob if rank 0 must not have it."""
        trainer = f"{self._others.path}.spec.containers[{names.TRAINER_CONTAINER}]"
        path = path.replace(trainer, self._others.trainer_path, 1)
        if not is_open:
            rule = "must be in the Master too, because an overlay for rank 0 can remove nothing"
            raise InvalidJob(path, rule)
        self._notes.changed(path, "is not in the Master, but rank 0 gets it too")
