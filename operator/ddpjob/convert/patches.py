"""Applies what a TrainJob changes in the pod of its runtime: its patches, then its trainer."""

from copy import deepcopy
from typing import Any

from ddpjob.convert.fields import Fields
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

# Each patch costs as much as the pod is large. Trainer itself takes 16.
MAX_PATCHES = 256
# Kubeflow Trainer adds the rest of this command itself.
_TUNE = ["tune", "run"]


class PatchedPod:
    """The pod of a runtime's job, and the metadata of its JobSet, as a TrainJob changes them."""

    def __init__(self, job: str, pod: Body, metadata: Body) -> None:
        self._job, self._count = job, 0
        self.pod, self.metadata = pod, metadata

    def apply_patches(self, spec: Fields) -> None:
        """Apply `runtimePatches`, and what older versions had in their place.

        Raises InvalidJob, with the path, for a patch that does not fit.
        """
        for patch in spec.parts("podSpecOverrides"):  # v2.0
            if self._aims_here(patch):
                self._merge({"spec": self._containers_fit(patch)})
        for patch in spec.parts("podTemplateOverrides"):  # v2.1 and v2.2
            if self._aims_here(patch):
                self._merge_template(patch)
        for patch in spec.parts("runtimePatches", "manager"):
            for name in ("manager", "time"):
                patch.take(name, str)
            template = patch.part("trainingRuntimeSpec").part("template")
            self._merge_metadata(template.part("metadata"))
            for job in template.part("spec").parts("replicatedJobs"):
                self._patch_job(job)

    def _merge_metadata(self, patch: Fields) -> None:
        for kind in ("labels", "annotations"):
            if rest := patch.part(kind).rest():
                self.metadata = overlay.merge(self.metadata, {kind: rest})

    def _aims_here(self, patch: Fields) -> bool:
        jobs = [job.take("name", str) for job in patch.parts("targetJobs")]
        if self._job in jobs:
            return True
        patch.leave_out("a DDPJob has no such job", list(patch))
        return False

    def _patch_job(self, job: Fields) -> None:
        if job.take("name", str) != self._job:
            job.leave_out("a DDPJob has no such job", list(job))
            return
        template = job.part("template")
        template.leave_out("a DDPJob has no Jobs", ("metadata",))
        self._merge_template(template.part("spec").part("template"))

    def _merge_template(self, patch: Fields) -> None:
        metadata = patch.part("metadata").rest()
        spec = self._containers_fit(patch.part("spec"))
        self._merge({"metadata": metadata, "spec": spec})

    def _merge(self, patch: Body) -> None:
        self._count += 1
        if self._count > MAX_PATCHES:
            rule = f"must have at most {MAX_PATCHES} patches of the job {self._job}"
            raise InvalidJob("spec", rule)
        self.pod = overlay.merge(self.pod, {name: part for name, part in patch.items() if part})

    def _containers_fit(self, spec: Fields) -> Body:
        """Return the patch of a pod's spec, whose containers are those of the runtime."""
        body = spec.rest()
        own: Any = self.pod.get("spec")
        for kind in ("containers", "initContainers"):
            known = _names(own.get(kind) if isinstance(own, dict) else None)
            wanted = body.get(kind, [])
            if not isinstance(wanted, list):
                raise spec.error(kind, "must be a list", wanted)
            if unknown := sorted(_names(wanted) - known):
                rule = f"must be containers of the runtime's job {self._job}"
                raise spec.error(kind, rule, unknown)
        return body

    def apply_trainer(self, trainer: Fields, container: str) -> None:
        """Apply image, command, args, env and resources of `spec.trainer` to this container."""
        spec = deepcopy(self.pod.get("spec"))
        containers: Any = spec.get("containers") if isinstance(spec, dict) else None
        found = [each for each in _items(containers) if _name(each) == container]
        main = found[0] if found else {}
        for name in ("image", "command", "args"):
            kind = str if name == "image" else list
            if (value := trainer.take(name, kind)) is not None:
                main[name] = value
        if main.get("command") == _TUNE:
            rule = (
                "must be whole: to tune run alone Kubeflow Trainer adds the recipe and its config"
            )
            raise InvalidJob(trainer.where("command"), rule)
        main["env"] = _with_variables(main.get("env") or [], trainer.take("env", list) or [])
        wanted = trainer.part("resourcesPerNode").rest()
        main["resources"] = overlay.merge(main.get("resources") or {}, wanted)
        self.pod = {**self.pod, "spec": spec}


def _names(items: Any) -> set[str]:
    """Return the names of containers or variables."""
    return {name for item in _items(items) if (name := _name(item)) is not None}


def _items(value: Any) -> list[Any]:
    """Return the items of a list; none of what is no list, as the rules for the pod say later."""
    return value if isinstance(value, list) else []


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def _with_variables(env: Any, variables: list[Any]) -> Any:
    """Return the variables of the runtime, each replaced by one of the TrainJob with its name."""
    names = _names(variables)
    if not isinstance(env, list):
        return env
    return [*(item for item in env if _name(item) not in names), *variables]
