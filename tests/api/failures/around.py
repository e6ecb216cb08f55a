"""Failures around the script: of pods, nodes, quotas and images."""

import asyncio
import base64
import contextlib
import gzip
from collections.abc import Callable
from typing import Any

from tests.api.failures.table import ANY, Cause, Kind, Scene, exception, text
from tests.cluster.apiserver import ApiError
from tests.cluster.client import STRATEGIC
from tests.cluster.nodes import set_node_ready
from tests.cluster.podstatus import End, Life, Pod

WAITS = "import time\ntime.sleep(600)\n"
PYTHON = {"launcher": "python"}
ONE = {"launcher": "python", "nnodes": 1}
NOWHERE = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}
PRIORITY = "/apis/scheduling.k8s.io/v1/priorityclasses"
# A ConfigMap that there is, with an archive of another sum than the jobs have.
OTHER_CODE = {
    "metadata": {"name": "other-code"},
    "binaryData": {"code.tar.gz": base64.b64encode(gzip.compress(b"", mtime=0)).decode()},
}
FILLS = """
    rows = []
    while True:
        rows.append(b"x" * 2**20)
"""


def on(node: str) -> dict[str, Any]:
    """A template whose pods run on this node alone."""
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}


def code(config_map: str) -> dict[str, Any]:
    """Own code in this ConfigMap, which has not the sum that the job names."""
    return {**ONE, "args": ["train.py"], "code": {"configMaps": [config_map], "sha256": "0" * 64}}


def ends(end: End) -> Callable[[Pod], Life]:
    """Rank 1 ends so after a moment, rank 0 goes on."""

    def life(pod: Pod) -> Life:
        name = str(pod["metadata"]["name"])
        return Life(run_seconds=0.2, end=end) if name.endswith("-1") else Life()

    return life


def path(scene: Scene, job: str, rank: int = 1) -> str:
    return f"/api/v1/namespaces/{scene.namespace}/pods/{job}-0-{rank}"


async def delete(scene: Scene, job: str) -> None:
    await scene.pods_run(job)
    await scene.client.request("DELETE", path(scene, job))


async def evict(scene: Scene, job: str) -> None:
    await scene.pods_run(job)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"{job}-0-1"}}
    await scene.client.request("POST", f"{path(scene, job)}/eviction", eviction)


async def lose_node(scene: Scene, job: str) -> None:
    await scene.pods_run(job)
    scene.kubelet.mute("lost")
    await set_node_ready(scene.client, "lost", ready=False)


async def preempt(scene: Scene, job: str) -> None:
    await scene.pods_run(job)
    await scene.client.request("POST", PRIORITY, {"metadata": {"name": "urgent"}, "value": 1000})
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {**on("small")["spec"], "priorityClassName": "urgent", "containers": [container]}
    pods = f"/api/v1/namespaces/{scene.namespace}/pods"
    async with asyncio.timeout(200):
        while True:
            with contextlib.suppress(ApiError):  # admission has not heard of the priority yet
                body = {"metadata": {"name": "urgent"}, "spec": spec}
                await scene.client.request("POST", pods, body)
                return
            await asyncio.sleep(0.1)


async def cannot_pull(scene: Scene, job: str) -> None:
    """What a kubelet writes of an image that does not exist."""
    pod = await scene.pod_is_bound(job)
    waiting = {"reason": "ErrImagePull", "message": "trainer:1: not found"}
    container = {
        **{"name": "trainer", "image": "trainer:1", "imageID": "", "ready": False},
        **{"restartCount": 0, "state": {"waiting": waiting}},
    }
    body = {"status": {"containerStatuses": [container]}}
    where = f"{path(scene, job, 0)}/status"
    assert pod["status"]["phase"] == "Pending"
    await scene.client.request("PATCH", where, body, content_type=STRATEGIC)


KINDS = (
    Kind(
        "deleted pod",
        Cause("PodDeleted", message=("is being deleted",)),
        WAITS,
        PYTHON,
        act=delete,
    ),
    Kind("evicted pod", Cause("Evicted", message=("is being deleted",)), WAITS, PYTHON, act=evict),
    Kind(
        "evicted by the kubelet, under node pressure",
        Cause("Evicted", exit_code=137),
        spec=PYTHON,
        life=ends(End(137, pod_reason="Evicted", disruption="TerminationByKubelet")),
    ),
    Kind(
        "preempted pod",
        Cause("Preempted", 0, message=("is being deleted",)),
        spec={**ONE, "resources": {"requests": {"cpu": "1"}}, "template": on("small")},
        life=lambda pod: Life(stop_seconds=2),
        act=preempt,
    ),
    Kind(
        "lost node",
        Cause("NodeLost", 0, message=("is being deleted",)),
        spec={**ONE, "template": on("lost")},
        life=lambda pod: Life(),
        act=lose_node,
    ),
    Kind(
        "node that refuses the pod",
        Cause("NodeRefused", exit_code=1, message=("OutOfcpu",)),
        spec=PYTHON,
        life=ends(End(1, pod_reason="OutOfcpu")),
    ),
    Kind(
        "image that cannot be pulled",
        Cause("StartupDeadlineExceeded", 0, message=("trainer:1: not found",)),
        spec={**ONE, "startupDeadlineSeconds": 6},
        life=lambda pod: Life(start_seconds=600),
        act=cannot_pull,
    ),
    Kind(
        "image without Python",
        Cause("StartError", exit_code=128, message=("executable file not found in $PATH",)),
        spec=PYTHON,
        life=ends(
            End(
                128,
                reason="StartError",
                message='exec: "python3": executable file not found in $PATH',
            )
        ),
    ),
    Kind(
        "another archive than that of spec.code",
        Cause("CodeInvalid", None, message=("its sha256 is", "spec.code")),
        spec=code("other-code"),
    ),
    Kind(
        "no ConfigMap with the archive of spec.code",
        Cause("CodeInvalid", None, exception="FileNotFoundError", message=("no such ConfigMap",)),
        spec=code("no-code"),
    ),
    Kind(
        "no node for the pod",
        Cause("StartupDeadlineExceeded", 0, message=("didn't match Pod's node affinity/selector",)),
        spec={**ONE, "startupDeadlineSeconds": 6, "template": NOWHERE},
    ),
    Kind(
        "quota",
        Cause("StartupDeadlineExceeded", 0, message=("exceeded quota: failures",)),
        spec={
            **ONE,
            "startupDeadlineSeconds": 1,
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        },
    ),
    Kind(
        "pod that never joins: node rank 1",
        Cause("Rendezvous", 0, exception=ANY, message=("group of 2 nodes at",)),
        WAITS,
        {
            "env": [{"name": "RENDEZVOUS_SECONDS", "value": "4"}],
            "template": NOWHERE,
            "master": {"template": on("local")},
        },
    ),
    Kind(
        "pod that never joins: node rank 0",
        Cause("Rendezvous", 1, exception=ANY, message=("group of 2 nodes at",)),
        WAITS,
        {
            "env": [{"name": "RENDEZVOUS_SECONDS", "value": "4"}],
            "template": on("local"),
            "master": {"template": NOWHERE},
        },
    ),
    Kind(
        "out of memory, the whole container",
        Cause("OOMKilled", exit_code=137),
        spec=PYTHON,
        life=ends(End(137, reason="OOMKilled")),
    ),
    Kind(
        "out of memory, one process of the container",
        Cause("OOMKilled", 0, signal="SIGKILL", message=("by the memory limit of 96 MiB",)),
        text(FILLS),
        {**ONE, "env": [{"name": "CGROUP", "value": "{cgroup}"}]},
        needs_cgroup=True,
    ),
    Kind(
        "killed agent",
        Cause("Error", exit_code=137, message=("exit code 137",)),
        'import os, time\nif os.environ["RANK"] == "1":\n    os.kill(os.getppid(), 9)\n'
        "time.sleep(600)\n",
        PYTHON,
    ),
    Kind(
        "exception under accelerate",
        exception("ValueError", "no such label", node_rank=0),
        'import os, time\nif os.environ["RANK"] == "1":\n    raise ValueError("no such label")\n'
        "time.sleep(600)\n",
        {"launcher": "accelerate", "nnodes": 1, "nprocPerNode": 2},
    ),
)
