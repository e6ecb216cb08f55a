"""What pods have for `spec.code`: the archive, the folder of the code, variables. Pure."""

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from ddpjob import names
from ddpjob.api.code import Code
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

# The fields of the job by the pod's volumes that are made of them.
FIELDS = {names.ARCHIVE_VOLUME: "spec.code.volume"}
FIELDS |= {
    f"{names.ARCHIVE_VOLUME}-{part}": f"spec.code.configMaps[{part}]"
    for part in range(names.MAX_ARCHIVE_PARTS)
}


def variables(code: Code) -> dict[str, str]:
    """Return the variables by which the agent finds the archive, and the ranks their folder."""
    parts = [f"{name}/{names.ARCHIVE_KEY}" for name in code.config_maps or ()]
    files = [code.path] if code.path else parts
    return {
        "DDPJOB_CODE_DIR": code.mount_path,
        "DDPJOB_CODE_PARTS": ":".join(f"{names.ARCHIVE_DIR}/{file}" for file in files),
        "DDPJOB_CODE_SHA256": code.sha256,
    }


def volumes(code: Code, others: Sequence[Body]) -> tuple[list[Body], list[Body]]:
    """Return the pod's volumes for the code, and the trainer container's mounts of them.

    `others` are the pod's other volumes. If one of them has the archive's claim, it is mounted
    once more, because the same claim in two volumes keeps a pod from starting.
    """
    made: list[Body] = [{"name": names.SOURCE_VOLUME, "emptyDir": {}}]
    mounts: list[Body] = [{"name": names.SOURCE_VOLUME, "mountPath": code.mount_path}]
    for position, config_map in enumerate(code.config_maps or ()):
        name, path = f"{names.ARCHIVE_VOLUME}-{position}", f"{names.ARCHIVE_DIR}/{config_map}"
        # If it does not exist, the agent fails and says so. The kubelet would wait for it.
        made.append({"name": name, "configMap": {"name": config_map, "optional": True}})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    if code.volume:
        own = {"name": names.ARCHIVE_VOLUME, **code.volume.to_json()}
        same = [other for other in others if _claim(own) and _claim(other) == _claim(own)]
        made += [] if same else [own]
        name = (same or [own])[0]["name"]
        mounts.append({"name": name, "mountPath": names.ARCHIVE_DIR, "readOnly": True})
    return made, mounts


def _claim(volume: Body) -> str:
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName") or "")


def misplaced(code: Code, mounts: Iterable[Body]) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each mount below the folder of the code, which is emptied."""
    for mount in mounts:
        path = mount["mountPath"]
        if posixpath.normpath("/" + path.lstrip("/")).startswith(f"{code.mount_path}/"):
            where = f"spec.template.spec.containers[{names.TRAINER_CONTAINER}].volumeMounts[{path}]"
            rule = "lies in spec.code.mountPath, which is emptied before each start"
            yield InvalidJob(where, rule)
