"""The folders that a pod's volumes become: its own for scratch and files, shared for claims."""

import base64
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.runner.launch import CannotStart, main_container

# Pods share this machine's own /dev/shm, and its /tmp, where each has a folder of its own.
SHARED_MEMORY = "/dev/shm"
# Folders of a job.
LOGS, SHARED = "logs", "volumes"
# No volume's name begins with a dot.
TERMINATION_LOG = ".termination-log"
# Kinds of volume of which each pod has its own.
OWN = ("emptyDir", "configMap", "ephemeral")
UNKNOWN = ("secret", "projected", "downwardAPI", "image")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def job_folder(root: Path, namespace: str, job: str) -> Path:
    """Return the job's folder: `root/<job>`, or `root/<namespace>.<job>` if not `default`."""
    folder = root / (job if namespace == "default" else f"{namespace}.{job}")
    assert folder.parent == root, f"{namespace}/{job} leaves {root}"
    return folder.absolute()


class PodFolders:
    """Where things of one pod are: `<job>/logs`, `<job>/volumes`, `<job>/<pod>`."""

    def __init__(self, root: Path, pod: Body) -> None:
        meta = pod["metadata"]
        job = (meta.get("labels") or {}).get(names.JOB_LABEL) or meta["name"]
        if not _NAME.fullmatch(job):  # a label may hold dots
            job = meta["name"]
        self.job = job_folder(root, meta["namespace"], job)
        self.own: Path = self.job / meta["name"]
        self.shared = self.job / SHARED
        self.log = self.job / LOGS / f"{meta['name']}.log"
        self.termination_log = self.own / TERMINATION_LOG

    def clear(self) -> None:
        """Make the pod's own folder empty, and its termination log."""
        self.remove()
        self.own.mkdir(parents=True)
        self.termination_log.touch()
        self.log.parent.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Delete the pod's own folder; log and shared volumes stay."""
        shutil.rmtree(self.own, ignore_errors=True)


def config_map_volumes(pod: Body) -> list[str]:
    """Return the names of the ConfigMaps that are volumes of `pod`."""
    return [each["configMap"]["name"] for each in _volumes(pod).values() if "configMap" in each]


def mount(
    pod: Body,
    folders: PodFolders,
    config_maps: Mapping[str, Body],
    given: Mapping[str, Path] | None = None,
) -> dict[str, Path]:
    """Return the folder of each mount path, and make the folders and files.

    `config_maps` holds the objects by name, and `given` the folders that volumes have already.
    Raises CannotStart for what cannot be had here.
    """
    container, volumes = main_container(pod), _volumes(pod)
    log_path = container.get("terminationMessagePath") or names.TERMINATION_LOG
    mounted = {log_path: folders.termination_log}
    for entry in container.get("volumeMounts") or []:
        name, path = entry["name"], entry["mountPath"].rstrip("/")
        if (
            path == SHARED_MEMORY
            and "emptyDir" in volumes.get(name, {})
            or name == names.TMP_VOLUME
        ):
            continue
        if name not in volumes or not path or entry.get("subPathExpr"):
            raise CannotStart(f"volumeMounts[{name}]: cannot be mounted here at {path or '/'}")
        folder = (given or {}).get(name) or _folder(name, volumes[name], folders, config_maps)
        target = (folder / (entry.get("subPath") or "")).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise CannotStart(f"volumeMounts[{name}].subPath: leaves the volume")
        if not target.exists():
            target.mkdir(parents=True)
        mounted[path] = target
    return mounted


def _folder(name: str, volume: Body, folders: PodFolders, config_maps: Mapping[str, Body]) -> Path:
    folder = folders.own / name
    for kind in UNKNOWN:
        if kind in volume:
            raise CannotStart(f"volumes[{name}]: {kind} volumes are not known here")
    if any(kind in volume for kind in OWN):
        if source := volume.get("configMap"):
            found = config_maps.get(source["name"])
            if found is None and not source.get("optional"):
                raise CannotStart(f'configmap "{source["name"]}" not found: nobody makes one here')
            _write_files(folder, found or {})
    else:
        claim = volume.get("persistentVolumeClaim") or {}
        folder = folders.shared / str(claim.get("claimName") or name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_files(folder: Path, config_map: Body) -> None:
    """Write the ConfigMap's keys as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, text in (config_map.get("data") or {}).items():
        (folder / key).write_text(text)
    for key, text in (config_map.get("binaryData") or {}).items():
        (folder / key).write_bytes(base64.b64decode(text))


def _volumes(pod: Body) -> dict[str, Body]:
    return {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
