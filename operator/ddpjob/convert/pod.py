"""Reads the pod template of another operator as an overlay of a DDPJob's pod."""

from dataclasses import dataclass

from ddpjob import names
from ddpjob.convert.command import read_command
from ddpjob.convert.container import read_other, read_trainer
from ddpjob.convert.fields import Fields
from ddpjob.convert.labels import rename_labels
from ddpjob.convert.program import Program
from ddpjob.convert.security import secure
from ddpjob.convert.volumes import explain_claims, read_volumes, take_shm
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods.overlay import is_own_label


@dataclass(frozen=True)
class Pod:
    """A pod of the other operator, in the words of a DDPJob."""

    path: str
    """The path of its template in the input."""
    main: str
    """The name of its main container in the input."""
    template: Body
    """The whole pod as an overlay, whose main container is `trainer`, without its program."""
    program: Program
    shm: Body
    """What `spec.shm` must say; empty if the default fits."""
    port: int | None
    """The port at which the ranks meet, or None."""
    grace: int | None
    """The value of `spec.terminationGracePeriodSeconds`, or None."""

    @property
    def trainer_path(self) -> str:
        """Return the path of its main container in the input."""
        return f"{self.path}.spec.containers[{self.main}]"


def read_pod(template: Fields, main: str, port_name: str = "") -> Pod:
    """Return the pod of `template`, whose trainer is the container `main`.

    `port_name` is the name of the port at which the ranks meet. Raises InvalidJob, with the path,
    if the template is no pod, or is one that a DDPJob cannot have.
    """
    notes = template.notes
    metadata, spec = _metadata(template.part("metadata")), template.part("spec")
    main_container, others = _containers(spec, main)
    command, args = main_container.texts("command"), main_container.texts("args")
    program = read_command(command, args, main_container.path, notes)
    trainer, port = read_trainer(main_container, port_name)
    trainer["name"] = names.TRAINER_CONTAINER
    pod = _pod(spec, trainer, others)
    grace = _take_grace(spec)
    pod |= _rest(spec)
    shm = take_shm(pod, trainer, main_container.path, notes)
    explain_claims(pod, trainer, main_container.path, notes)
    _explain_ports(pod, spec)
    secure(pod, trainer, spec.path, notes)
    body = {"metadata": metadata, "spec": pod} if metadata else {"spec": pod}
    renamed = rename_labels(body, template.path, notes)
    return Pod(template.path, main, renamed, program, shm, port, grace)


def _metadata(metadata: Fields) -> Body:
    found: Body = {}
    for name in ("labels", "annotations"):
        part = metadata.part(name)
        part.leave_out("is set by ddpjob", [key for key in part if is_own_label(key)])
        if rest := part.rest():
            found[name] = rest
    metadata.leave_out("ddpjob names the pods", ("name", "generateName", "namespace"))
    return found


def _containers(spec: Fields, main: str) -> tuple[Fields, list[Fields]]:
    """Return the container whose name is `main`, and the others."""
    found = spec.named("containers")
    if main not in found:
        raise InvalidJob(spec.where("containers"), f"must have a container with the name {main}")
    trainer = found.pop(main)
    if taken := found.get(names.TRAINER_CONTAINER):
        rule = f"must be another name, because the container {main} becomes trainer"
        raise taken.error("name", rule, names.TRAINER_CONTAINER)
    return trainer, list(found.values())


def _pod(spec: Fields, trainer: Body, others: list[Fields]) -> Body:
    pod: Body = {"containers": [trainer, *map(read_other, others)]}
    if init := spec.named("initContainers"):
        pod["initContainers"] = [read_other(container) for container in init.values()]
    if init or others:
        reason = "only the trainer gets RANK, WORLD_SIZE, MASTER_ADDR and the like"
        spec.notes.changed(spec.path, f"init containers and sidecars are in template, and {reason}")
    if volumes := read_volumes(spec):
        pod["volumes"] = volumes
    return pod


def _explain_ports(pod: Body, spec: Fields) -> None:
    """Note ports that others may want to reach: a DDPJob has a NetworkPolicy."""
    for container in pod["containers"]:
        if container.get("ports"):
            where = f"{spec.path}.containers[{container['name']}].ports"
            reason = "networkPolicy lets in the job's own pods alone, unless it is disabled"
            spec.notes.changed(where, f"in template; {reason}")


def _take_grace(spec: Fields) -> int | None:
    grace = spec.take("terminationGracePeriodSeconds", int)
    if grace == 0:
        path = spec.where("terminationGracePeriodSeconds")
        spec.notes.changed(path, "0: must be at least 1 in a DDPJob")
        return 1
    return grace


def _rest(spec: Fields) -> Body:
    """Return the fields that are the same in an overlay of a DDPJob's pod."""
    reason = "ddpjob names the pods, so that the ranks find each other"
    spec.leave_out(reason, ("hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"))
    spec.leave_out("the operator restarts the group (failurePolicy)", ("restartPolicy",))
    spec.leave_out("is a field of the job", ("activeDeadlineSeconds",))
    spec.leave_out("cannot be set on new pods", ("ephemeralContainers",))
    return spec.rest()
