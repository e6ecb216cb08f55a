"""Reads the pod template of another operator as an overlay of a DDPJob's pod."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddpjob import names
from ddpjob.api.podtypes import is_reserved
from ddpjob.convert import tables
from ddpjob.convert.command import Program, read_command
from ddpjob.convert.fields import Dropped, Fields, Notes
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

_GRACE = "terminationGracePeriodSeconds"
# Parts that are as good as absent if they are empty.
_PARTS = ("initContainers", "volumes", "env", "ports", "volumeMounts", "resources")
# What a DDPJob's pods have in place of labels of others, with the same meaning.
_RENAMED = {
    "training.kubeflow.org/job-name": names.JOB_LABEL,
    "jobset.sigs.k8s.io/jobset-name": names.JOB_LABEL,
    "batch.kubernetes.io/job-completion-index": names.RANK_LABEL,
}
_FOREIGN_LABEL = re.compile(
    r"(training\.kubeflow\.org|trainer\.kubeflow\.org|jobset\.sigs\.k8s\.io|batch\.kubernetes\.io)/"
    r"[-\w.]+"
)
_FOR_KUEUE = "kept; Kueue admits the job where the chart has kueue.enabled"
_UNREAD = "kept, but ddpjob does not read it"


@dataclass(frozen=True)
class Pod:
    """A pod of the other operator, in the words of a DDPJob.

    The paths are those of its template and of its main container in the input. `template` is the
    whole pod as an overlay, whose first container is `trainer`, without its program.
    """

    path: str
    trainer_path: str
    template: Body
    program: Program
    port: int | None
    grace: int | None


def read_metadata(source: Fields) -> Body:
    """Return the metadata of the DDPJob, and note what belongs to the old object alone."""
    metadata, notes = source.part("metadata"), source.notes
    found: Body = {
        name: value for name in ("name", "namespace") if (value := metadata.take(name, str))
    }
    if "name" not in found:
        rule = "is required: a DDPJob's pods are named after it, so generateName is not enough"
        raise InvalidJob(metadata.where("name"), rule)
    for kind in ("labels", "annotations"):
        part = metadata.part(kind)
        rest = part.rest()
        rest.pop("kubectl.kubernetes.io/last-applied-configuration", None)
        for key in [key for key in rest if key.startswith("kueue.x-k8s.io/")]:
            known = kind == "labels" and key in names.LABELS
            notes.changed(part.where(key), _FOR_KUEUE if known else _UNREAD)
        found |= {kind: rest} if rest else {}
    old = [metadata.where(name) for name in metadata.rest()]
    old += ["status"] if source.take("status", object) is not None else []
    if old:
        notes.lost(", ".join(old), "belongs to the old object alone")
    return found


def read_pod(template: Fields, main: str, port_name: str = "") -> Pod:
    """Return the pod of `template`, whose trainer is the container `main`.

    `port_name` is the name of the port at which the ranks meet.
    """
    notes, path, metadata = template.notes, template.where("spec"), template.part("metadata")
    labels = read_labels(metadata)
    metadata.read({"*": Dropped("ddpjob names the pods, and knows their labels and annotations")})
    template.part("spec").read(tables.POD)
    pod = _checked(template.part("spec"))
    fields, where = _take_trainer(pod, main, path, notes), f"{path}.containers[{main}]"
    program = read_command(_texts(fields, "command"), _texts(fields, "args"), where, notes)
    fields.read(tables.TRAINER)
    trainer = fields.rest()
    pod["containers"].insert(0, trainer)
    for place, container in _containers(pod, path):
        _read_env(container, place, notes, is_trainer=container is trainer)
    port = _read_ports(trainer, port_name, where, notes)
    _read_volumes(pod, trainer)
    grace = pod.pop(_GRACE, None)
    if grace == 0:
        notes.changed(f"{path}.{_GRACE}", "0: is 1, the least that a DDPJob can have")
        grace = 1
    _explain(pod, path, notes)
    _secure(pod, path, notes)
    _drop_empty_parts(pod)
    trainer["name"] = names.TRAINER_CONTAINER
    body = ({"metadata": labels} if labels else {}) | {"spec": _renamed(pod, path, notes)}
    return Pod(template.path, where, body, program, port, grace)


def _checked(spec: Fields) -> Body:
    """Return the spec of a pod, which has the shape of an overlay, and each name once."""
    pod = spec.rest()
    for problem in overlay.misshapen(pod, spec.path):
        raise problem
    for kind in ("containers", "initContainers", "volumes"):
        known = [item["name"] for item in pod.get(kind, [])]
        if len({*known}) < len(known):
            raise spec.error(kind, "must have each name once", known)
    return pod


def _drop_empty_parts(pod: Body) -> None:
    for part in (pod, *(container for _, container in _containers(pod))):
        for name in [name for name in _PARTS if name in part and not part[name]]:
            del part[name]


def read_labels(metadata: Fields) -> Body:
    """Return labels and annotations of pods, but for those that ddpjob sets."""
    found: Body = {}
    for kind in ("labels", "annotations"):
        part = metadata.part(kind)
        part.leave_out("ddpjob sets it", [key for key in part if overlay.is_own_label(key)])
        if rest := part.rest():
            found[kind] = rest
    return found


def _take_trainer(pod: Body, main: str, path: str, notes: Notes) -> Fields:
    """Take the container whose name is `main` out of the pod."""
    containers = pod.get("containers", [])
    found = {container["name"]: container for container in containers}
    if main not in found:
        raise InvalidJob(f"{path}.containers", f"must have a container with the name {main}")
    if names.TRAINER_CONTAINER in found and main != names.TRAINER_CONTAINER:
        rule = f"must be another name, because the container {main} becomes trainer"
        where = f"{path}.containers[{names.TRAINER_CONTAINER}].name"
        raise InvalidJob(where, rule, names.TRAINER_CONTAINER)
    pod["containers"] = [other for other in containers if other["name"] != main]
    return Fields(found[main], f"{path}.containers[{main}]", notes)


def _containers(pod: Body, path: str = "") -> Iterator[tuple[str, Body]]:
    """Yield all containers with their paths."""
    for kind in ("containers", "initContainers"):
        for container in pod.get(kind, []):
            yield f"{path}.{kind}[{container['name']}]", container


def _texts(container: Fields, name: str) -> list[str]:
    """Take a list of strings, empty if the field is absent."""
    found = container.take(name, list) or []
    if not all(isinstance(text, str) for text in found):
        raise container.error(name, "must be a list of strings", found)
    return found


def _read_env(container: Body, path: str, notes: Notes, *, is_trainer: bool) -> None:
    """Have each variable once: of several with one name, a pod has the last."""
    found: dict[str, Body] = {}
    for variable in container.get("env", []):
        name = variable["name"]
        if is_trainer and is_reserved(name):
            notes.lost(f"{path}.env[{name}]", "ddpjob sets it")
            continue
        if found.pop(name, None):
            notes.changed(f"{path}.env[{name}]", "stands twice, and the last one counts")
        found[name] = variable
    container["env"] = list(found.values())


def _read_ports(trainer: Body, port_name: str, path: str, notes: Notes) -> int | None:
    """Have each port once. Return the number of the port of that name, without it, or None."""
    found: dict[int, Body] = {}
    meeting = None
    for port in trainer.get("ports", []):
        number = port["containerPort"]
        if port_name and port.get("name") == port_name:
            meeting = number
        elif found.setdefault(number, port) is not port:
            notes.lost(f"{path}.ports[{number}]", f"{number}: stands twice")
    trainer["ports"] = list(found.values())
    return meeting


def _read_volumes(pod: Body, trainer: Body) -> None:
    """Write volumes and mounts as a DDPJob has them: without a source it is an emptyDir."""
    volumes, mounts = pod.get("volumes", []), trainer.get("volumeMounts", [])
    pod["volumes"] = [each if len(each) > 1 else {**each, "emptyDir": {}} for each in volumes]
    trainer["volumeMounts"] = [
        {**mount, "mountPath": mount["mountPath"].rstrip("/") or "/"} for mount in mounts
    ]


def _explain(pod: Body, path: str, notes: Notes) -> None:
    """Note what stays as it is, and may mean something else among a DDPJob's pods."""
    (_, trainer), *others = _containers(pod)
    if others:
        reason = "only the trainer gets RANK, WORLD_SIZE, MASTER_ADDR and the like"
        notes.changed(path, f"init containers and sidecars are in template, and {reason}")
    claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}
    for mount in trainer["volumeMounts"]:
        if isinstance(claim := claims.get(mount.get("name")), dict):
            where = f"{path}.containers[{trainer['name']}].volumeMounts[{mount['mountPath']}]"
            advice = "name it in checkpoint or data if it holds these, so that the script finds it"
            notes.changed(where, f"claim {claim.get('claimName')!r}: stays a volume; {advice}")
    for container in pod["containers"]:
        if container.get("ports"):
            where = f"{path}.containers[{container['name']}].ports"
            reason = "only the job's own pods reach it, unless networkPolicy.enabled is false"
            notes.changed(where, f"is in template, but {reason}")


def _secure(pod: Body, path: str, notes: Notes) -> None:
    """Change what contradicts the security that ddpjob sets, and note what is different.

    Its pods have a user other than root, no capabilities and no token.
    """
    contexts = [part.get("securityContext", {}) for _, part in [("", pod), *_containers(pod)]]
    for context in contexts:
        if context.get("runAsUser") == 0 and "runAsNonRoot" not in context:
            context["runAsNonRoot"] = False
            reason = "runAsNonRoot: false is added; the namespace must allow root"
            notes.changed(f"{path}.securityContext.runAsUser", f"0: {reason}")
        added = {*context.get("capabilities", {}).get("add", [])}
        if context.get("privileged") is True or added & {"SYS_ADMIN", "CAP_SYS_ADMIN"}:
            context.setdefault("allowPrivilegeEscalation", True)  # else the API server refuses it
    if all(context.get("runAsUser") is None for context in contexts[:2]):
        reason = "pods run as user 10001, not as the image's; set another one in template"
        notes.changed(f"{path}.securityContext.runAsUser", f"absent: {reason}")
    if pod.get("serviceAccountName") and pod.get("automountServiceAccountToken") is None:
        reason = "its token is not mounted unless automountServiceAccountToken is true"
        notes.changed(f"{path}.serviceAccountName", f"is in template, but {reason}")


def _renamed(value: Any, path: str, notes: Notes) -> Any:
    """Return a part of a pod with the labels of a DDPJob's pods in place of those of others.

    They are in selectors, and in variables and files that refer to the pod's labels.
    """
    if isinstance(value, list):
        return [_renamed(item, f"{path}[{place}]", notes) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            _renamed(name, path, notes): _renamed(part, f"{path}.{name}", notes)
            for name, part in value.items()
        }
    if not isinstance(value, str) or not (found := _FOREIGN_LABEL.search(value)):
        return value
    label = found[0]
    if label not in _RENAMED:
        notes.lost(path, f"{label}: no pod of a DDPJob has it, so name another label")
        return value
    notes.changed(path, f"{label}: is {_RENAMED[label]}, which a DDPJob's pods have")
    return value.replace("metadata.annotations", "metadata.labels").replace(label, _RENAMED[label])
