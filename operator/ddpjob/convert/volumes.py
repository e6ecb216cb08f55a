"""Reads the volumes of another operator's pod."""

from typing import Any

from ddpjob.convert.fields import Fields, Notes
from ddpjob.json_depth import Body

SHM = "/dev/shm"


def read_volumes(spec: Fields) -> list[Body]:
    """Return the pod's volumes. One without a source is an emptyDir, as in Kubernetes."""
    found = []
    for name, volume in spec.named("volumes").items():
        body = volume.rest()
        found.append(body if len(body) > 1 else {"name": name, "emptyDir": {}})
    return found


def take_shm(pod: Body, trainer: Body, path: str, notes: Notes) -> Body:
    """Return what `spec.shm` must say of the trainer's /dev/shm; empty if the default fits.

    A memory-backed emptyDir that only the trainer mounts there is taken out of the pod.
    """
    mounts = trainer.get("volumeMounts") or []
    mount = next((mount for mount in mounts if mount["mountPath"] == SHM), None)
    if mount is None:
        return {}
    volumes: list[Body] = pod.get("volumes") or []
    volume = next((volume for volume in volumes if volume["name"] == mount["name"]), Body())
    source: Any = volume.get("emptyDir")
    source = source if isinstance(source, dict) else {}
    users = [other for other in _mounts(pod) if other.get("name") == mount["name"]]
    if source.get("medium") != "Memory" or len(users) > 1 or set(mount) - {"name", "mountPath"}:
        return {"enabled": False}
    _keep(trainer, "volumeMounts", [other for other in mounts if other is not mount])
    _keep(pod, "volumes", [other for other in volumes if other is not volume])
    limit = source.get("sizeLimit")
    where = f"{path}.volumeMounts[{SHM}]"
    notes.changed(where, "is shm, which every DDPJob has" if limit is None else "is shm.sizeLimit")
    return {} if limit is None else {"sizeLimit": limit}


def _keep(part: Body, name: str, items: list[Body]) -> None:
    del part[name]
    part |= {name: items} if items else {}


def _mounts(pod: Body) -> list[Body]:
    return [
        mount
        for kind in ("containers", "initContainers")
        for container in pod.get(kind) or []
        for mount in container.get("volumeMounts") or []
    ]


def explain_claims(pod: Body, trainer: Body, path: str, notes: Notes) -> None:
    """Note each claim that the trainer mounts: nobody but the user knows what is in it."""
    claims = {volume["name"]: _claim(volume) for volume in pod.get("volumes") or []}
    for mount in trainer.get("volumeMounts") or []:
        if claim := claims.get(mount["name"]):
            where = f"{path}.volumeMounts[{mount['mountPath']}]"
            advice = "name it in checkpoint or data if it holds these, so that the script finds it"
            notes.changed(where, f"claim {claim!r}: stays a volume; {advice}")


def _claim(volume: Body) -> Any:
    claim = volume.get("persistentVolumeClaim")
    return claim.get("claimName") if isinstance(claim, dict) else None
