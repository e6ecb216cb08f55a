"""What stands in, on this machine, for the cluster's parts of a pod: addresses, ports, folders.

A pod has folders of its own for scratch and files, and shares those of claims.
"""

import base64
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.local.gpus import Share
from ddpjob.local.launch import CannotStart, main_container
from ddpjob.local.network import Loopback

# Pods share this machine's own /dev/shm, and its /tmp, where each has a folder of its own.
SHARED_MEMORY = "/dev/shm"
# Folders of a job.
LOGS, SHARED = "logs", "volumes"
# No volume's name begins with a dot.
TERMINATION_LOG = ".termination-log"
# Kinds of volume of which each pod has its own.
OWN = ("emptyDir", "configMap", "ephemeral")
UNKNOWN = ("secret", "projected", "downwardAPI", "image")


def job_folder(root: Path, namespace: str, job: str) -> Path:
    """Return the job's folder: `root/<job>`, or `root/<namespace>.<job>` if not `default`."""
    return (root / (job if namespace == "default" else f"{namespace}.{job}")).absolute()


class PodFolders:
    """Where things of one pod are: `<job>/logs`, `<job>/volumes`, `<job>/<pod>`."""

    def __init__(self, root: Path, pod: Body) -> None:
        meta = pod["metadata"]
        job = (meta.get("labels") or {}).get(names.JOB_LABEL) or meta["name"]
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
    for kind in UNKNOWN:
        if kind in volume:
            raise CannotStart(f"volumes[{name}]: {kind} volumes are not known here")
    claim = volume.get("persistentVolumeClaim") or {}
    is_own = any(kind in volume for kind in OWN)
    folder = folders.own / name if is_own else folders.shared / str(claim.get("claimName") or name)
    folder.mkdir(parents=True, exist_ok=True)
    if source := volume.get("configMap"):
        found = config_maps.get(source["name"], {} if source.get("optional") else None)
        if found is None:
            raise CannotStart(f'configmap "{source["name"]}" not found: nobody makes one here')
        for key, text in (found.get("data") or {}).items():
            (folder / key).write_text(text)
        for key, text in (found.get("binaryData") or {}).items():
            (folder / key).write_bytes(base64.b64decode(text))
    return folder


def _volumes(pod: Body) -> dict[str, Body]:
    return {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}


def address(pod: Body, loopback: Loopback) -> str:
    """Return the pod's address."""
    return loopback.address(_key(pod))


def annotations(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Return the annotation with the port of the pod's agent; empty for the usual port."""
    port = loopback.agent_port(_key(pod))
    return {} if port == names.AGENT_PORT else {names.AGENT_PORT_ANNOTATION: str(port)}


def variables(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Return what replaces values of the cluster: where the agent and rank 0 are here."""
    of_rank_0 = _variable(pod, "MASTER_ADDR").partition(".")[0]
    master = loopback.address(f"{_group(pod)}/{of_rank_0}")
    port = str(loopback.port(_group(pod)))
    return {
        "DDPJOB_AGENT_PORT": str(loopback.agent_port(_key(pod))),
        "MASTER_ADDR": master,
        "PET_MASTER_ADDR": master,
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
    }


def defaults(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Return loopback for gloo and NCCL, which would ask for this machine's name, and threads."""
    interface = "lo" if loopback.many else "lo0"
    counts = (_variable(pod, name) or "1" for name in ("DDPJOB_NNODES", "DDPJOB_NPROC_PER_NODE"))
    threads = (os.cpu_count() or 1) // math.prod(map(int, counts))
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(max(1, threads)),
    }


def share(pod: Body, shares: Sequence[Share]) -> Share:
    """Return the GPUs of the pod's node, of those of all nodes by their ranks."""
    return shares[int(pod["metadata"]["labels"][names.RANK_LABEL])] if shares else {}


def _group(pod: Body) -> str:
    """Key of the attempt that the pod belongs to."""
    labels = pod["metadata"]["labels"]
    return f"{labels[names.JOB_UID_LABEL]}/{labels[names.ATTEMPT_LABEL]}"


def _key(pod: Body) -> str:
    return f"{_group(pod)}/{pod['metadata']['name']}"


def _variable(pod: Body, name: str) -> str:
    found = [v.get("value") for v in main_container(pod).get("env") or [] if v["name"] == name]
    return found[-1] or "" if found else ""
