"""What stands in, on this machine, for the cluster's parts of a pod."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.runner.gpus import Share
from ddpjob.runner.launch import Place, main_container
from ddpjob.runner.network import LOOPBACK, Loopback
from ddpjob.runner.volumes import PodFolders, mount


def place(
    pod: Body,
    folders: PodFolders,
    config_maps: Mapping[str, Body],
    loopback: Loopback,
    shares: Sequence[Share] = (),
    given: Mapping[str, Path] | None = None,
) -> Place:
    """Return the address, ports, folders and GPUs of `pod`, and make the folders.

    Raises CannotStart.

    `shares` are the GPUs of each node, by its rank. A pod that has none in it sees none. `given`
    are the folders that volumes have already.
    """
    return Place(
        address=address(pod, loopback),
        host_address=LOOPBACK,
        variables=_variables(pod, loopback),
        folders=mount(pod, folders, config_maps, given),
        defaults=_defaults(pod, loopback),
        share=_share(pod, shares),
    )


def address(pod: Body, loopback: Loopback) -> str:
    """Return the pod's address."""
    return loopback.address(_key(pod))


def annotations(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Return the annotation with the port of the pod's agent; empty for the usual port."""
    port = loopback.agent_port(_key(pod))
    return {} if port == names.AGENT_PORT else {names.AGENT_PORT_ANNOTATION: str(port)}


def _variables(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Values that replace those of the cluster: where the agent and rank 0 are here."""
    agent = {"DDPJOB_AGENT_PORT": str(loopback.agent_port(_key(pod)))}
    group = _group(pod)
    if not group:
        return agent
    master, port = loopback.address(f"{group}/0"), str(loopback.port(group))
    return agent | {
        "MASTER_ADDR": master,
        "PET_MASTER_ADDR": master,
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
    }


def _defaults(pod: Body, loopback: Loopback) -> dict[str, str]:
    """Loopback for gloo and NCCL, which would ask for this machine's name; a share of the cores."""
    interface = "lo" if loopback.many else "lo0"
    variables = main_container(pod).get("env") or []
    processes = [v.get("value") for v in variables if v["name"] == "DDPJOB_WORLD_SIZE"]
    threads = (os.cpu_count() or 1) // int((processes or ["1"])[-1])
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(max(1, threads)),
    }


def _share(pod: Body, shares: Sequence[Share]) -> Share:
    rank = (pod["metadata"].get("labels") or {}).get(names.RANK_LABEL) or ""
    known = rank.isdecimal() and int(rank) < len(shares)
    return shares[int(rank)] if known else {}


def _group(pod: Body) -> str:
    """Key of the attempt that the pod belongs to, empty for a pod of no job."""
    labels = pod["metadata"].get("labels") or {}
    job, attempt = labels.get(names.JOB_UID_LABEL), labels.get(names.ATTEMPT_LABEL)
    return f"{job}/{attempt}" if job and attempt else ""


def _key(pod: Body) -> str:
    group, rank = _group(pod), (pod["metadata"].get("labels") or {}).get(names.RANK_LABEL)
    return f"{group}/{rank}" if group and rank else str(pod["metadata"]["uid"])
