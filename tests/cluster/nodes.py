"""Nodes without machines: enough of one for the scheduler to bind pods to it.

A pod bound to such a node stays Pending until something acts on it: `ddpjob.local` runs it as
local processes, `kubelet.ScriptedKubelet` plays it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.cluster.apiserver import ApiError
from tests.cluster.client import MERGE, STRATEGIC, Client

HEARTBEAT_SECONDS = 10  # s, the kubelet's own
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CAPACITY = {"cpu": "10k", "memory": "100Ti", "ephemeral-storage": "100Ti", "pods": "10k"}


@asynccontextmanager
async def fake_nodes(
    client: Client,
    *names: str,
    capacity: Mapping[str, str] | None = None,
) -> AsyncIterator[Sequence[str]]:
    """Ready nodes of these names (`node-0` if none is given) with a heartbeat; deleted at the end.

    `capacity` is added to room for ten thousand pods, so `{"nvidia.com/gpu": "8"}` makes GPU nodes.
    They count as lost only if a test says so (`set_node_ready`).
    """
    names = names or ("node-0",)
    for name in names:
        await client.request("POST", "/api/v1/nodes", _node(name, capacity or {}))
        lease = {"metadata": {"name": name}, "spec": _beat(name)}
        await client.request("POST", LEASES, lease)
    heart = asyncio.create_task(_beat_for_ever(client, names))
    try:
        await asyncio.gather(*(_wait_until_schedulable(client, name) for name in names))
        yield names
    finally:
        heart.cancel()
        with suppress(asyncio.CancelledError):
            await heart
        for name in names:
            for path in (f"{LEASES}/{name}", f"/api/v1/nodes/{name}"):
                with suppress(ApiError, aiohttp.ClientError):  # the server may be gone before us
                    await client.request("DELETE", path)


async def set_node_ready(client: Client, name: str, *, ready: bool) -> None:
    """Write what the control plane writes of a node that stopped beating, without the 50 s wait.

    A lost node's pods go not ready at once and are deleted after their toleration of the taint
    `node.kubernetes.io/unreachable`. Only while another node is ready: where all are lost, the
    node controller holds still.
    """
    status, reason = ("True", "KubeletReady") if ready else ("Unknown", "NodeStatusUnknown")
    await _set_condition(client, f"/api/v1/nodes/{name}", "Ready", status, reason=reason)
    if not ready:
        pods = await client.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={name}")
        for meta in (pod["metadata"] for pod in pods["items"]):
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            try:
                await _set_condition(client, path, "Ready", "False")
            except ApiError as error:
                if error.code != 404:  # the operator may delete them by now
                    raise


async def _set_condition(client: Client, path: str, kind: str, status: str, **reason: str) -> None:
    condition = {**_now("lastTransitionTime"), "type": kind, "status": status, **reason}
    body = {"status": {"conditions": [condition]}}
    await client.request("PATCH", f"{path}/status", body, content_type=STRATEGIC)


async def _wait_until_schedulable(client: Client, name: str) -> None:
    """Wait until the node controller has taken away the taint that every new node gets."""
    async with asyncio.timeout(200):
        while (await client.request("GET", f"/api/v1/nodes/{name}"))["spec"].get("taints"):
            await asyncio.sleep(0.05)


async def _beat_for_ever(client: Client, names: Sequence[str]) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        for name in names:
            with suppress(ApiError, aiohttp.ClientError):  # the next beat will do
                path = f"{LEASES}/{name}"
                await client.request("PATCH", path, {"spec": _beat(name)}, content_type=MERGE)


def _beat(name: str) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}


def _now(*fields: str) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return dict.fromkeys(fields, now)


def _node(name: str, capacity: Mapping[str, str]) -> dict[str, Any]:
    condition = _now("lastHeartbeatTime", "lastTransitionTime")
    total = {**CAPACITY, **capacity}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": total,
            "allocatable": total,
            "conditions": [
                {**condition, "type": "Ready", "status": "True", "reason": "KubeletReady"},
                {**condition, "type": "MemoryPressure", "status": "False", "reason": "Enough"},
                {**condition, "type": "DiskPressure", "status": "False", "reason": "Enough"},
                {**condition, "type": "PIDPressure", "status": "False", "reason": "Enough"},
            ],
            "addresses": [{"type": "Hostname", "address": name}],
        },
    }
