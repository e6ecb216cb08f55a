"""Faults that befall a running job on kind, and how long it takes until its ranks train again."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ddpjob import names
from ddpjob.api.base import quantity_value
from ddpjob.json_depth import Body
from tests.agentpod import without_rank
from tests.chaos.rounds import placed
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e.install import SYSTEM, Job, evict, signal_rank, wait_until

SCRIPT = ROOT / "tests" / "e2e" / "scripts" / "steady.py"
HANG_SECONDS = 20  # a loaded machine takes long to use up memory
CPU_MILLIS = 500  # of a node's 2000: beside one that ends, and where the other node is lost
SPARE_MILLIS = 400  # what an urgent pod leaves of a node, so that it fits beside no pod of the job
SOON, NODE_LOST = 120.0, 300.0  # s; ten times what it takes, and more
Undo = ExitStack

# Of a pod that trains with SCRIPT.
SPREAD = {
    "topologyKey": "kubernetes.io/hostname",
    "maxSkew": 1,
    "whenUnsatisfiable": "ScheduleAnyway",
    # The scheduler counts no pods by an empty one.
    "labelSelector": {"matchExpressions": [{"key": names.JOB_LABEL, "operator": "Exists"}]},
}
TEMPLATE = {"spec": {"topologySpreadConstraints": [SPREAD]}}
# Never two of them on a node, not while another one is lost either.
APART = SPREAD | {"whenUnsatisfiable": "DoNotSchedule", "nodeAffinityPolicy": "Ignore"}
VOLUME: dict[str, Any] = {"name": "script", "configMap": {"name": "script"}}
MOUNT: dict[str, Any] = {"name": "script", "mountPath": "/script", "readOnly": True}


@dataclass(frozen=True)
class Fault:
    """Something that ends an attempt."""

    name: str
    happens: Callable[[Job, str, Undo], float | None]
    """To this pod; what must be put right again afterwards goes onto the stack. Its Unix time, if
    it comes later than the call."""
    reason: str
    """What `status.failure.reason` must say."""
    charged: bool = True
    most_seconds: float = SOON
    in_place: bool = False
    """It ends processes alone, so the same pods may go on."""
    replaced: bool = False
    """The other pod stays, and this one is replaced."""
    rank: int = 1
    """Node rank of the pod that it befalls."""
    freezes: bool = False
    """The processes there can do nothing, so they cannot end either."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault until …"""

    decided: float | None
    """… the next attempt or round has a number,"""
    running: float | None
    """… all nodes run (both None where no status says so),"""
    step: float
    """… all ranks have made a step, by their own clocks: the nodes of kind share one. Infinite if
    nobody waited so long."""


def kill(job: Job, pod: str, _undo: Undo) -> float:
    """SIGKILL for the training process."""
    return signal_rank(job, pod, "KILL", SCRIPT.name)


def stop(job: Job, pod: str, _undo: Undo) -> float:
    """SIGSTOP for it: it lives and makes no step."""
    return signal_rank(job, pod, "STOP", SCRIPT.name)


def asking(request: str) -> Callable[[Job, str, Undo], float]:
    """Ask the script for something that it does to itself."""

    def happens(job: Job, pod: str, _undo: Undo) -> float:
        where = ("exec", "-n", job.namespace, pod, "-c", job.container, "--", "sh", "-c")
        return float(job.cluster.kubectl(*where, f"date +%s.%N && touch /tmp/{request}"))

    return happens


def delete(job: Job, pod: str, _undo: Undo) -> None:
    """`kubectl delete pod`."""
    job.cluster.kubectl("delete", "pod", pod, "-n", job.namespace, "--wait=false")


def drain(job: Job, pod: str, _undo: Undo) -> None:
    """Evict it."""
    evict(job.cluster, job.namespace, pod)


def preempt(job: Job, pod: str, undo: Undo) -> None:
    """Somebody more important needs its place for a second.

    Of two pods of the job on its node that is the younger one's: the scheduler spares the others.
    """
    pods = job.pods()
    found = pods[pod]["spec"]
    here = {*pods_of(job), pod}  # it may be a spare
    nodes = [each["spec"].get("nodeName") for each in map(pods.get, here) if each]
    others = nodes.count(found["nodeName"]) - 1
    name = f"urgent-{job.namespace}"
    where = ("-n", job.namespace, "pod/urgent")
    undo.callback(job.cluster.kubectl, "delete", "priorityclass", name)
    undo.callback(job.cluster.kubectl, "delete", *where, "--ignore-not-found")
    (node,) = (
        n for n in job.cluster.get("nodes")["items"] if n["metadata"]["name"] == found["nodeName"]
    )
    millis = round(1000 * quantity_value(node["status"]["allocatable"]["cpu"])) - SPARE_MILLIS
    millis -= others * CPU_MILLIS
    container = {
        "name": "main",
        "image": found["containers"][0]["image"],
        "command": ["sleep", "1"],
        "resources": {"requests": {"cpu": f"{millis}m"}},
    }
    job.cluster.kubectl("create", "priorityclass", name, "--value=1000")
    urgent = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "urgent", "namespace": job.namespace},
        "spec": {
            "priorityClassName": name,
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": found["nodeName"]},
            "containers": [container],
        },
    }

    def accepted() -> bool:
        """Admission hears of a new priority a moment later."""
        try:
            job.cluster.apply(urgent)
        except AssertionError as error:
            assert "no PriorityClass" in str(error), error
            return False
        return True

    wait_until(accepted, 30, "urgent pod")


def node_of(job: Job, pod: str) -> str:
    """The node on which a pod runs."""
    node: str = job.pods()[pod]["spec"]["nodeName"]
    return node


def ready_again(job: Job, node: str, undo: Undo) -> None:
    """Wait for the node before the next fault, once it has been put right."""
    ready = ("wait", "--for=condition=Ready", f"node/{node}", "--timeout=180s")
    undo.callback(job.cluster.kubectl, *ready, timeout_seconds=200)


def lose_node(job: Job, pod: str, undo: Undo) -> None:
    """Its node's kubelet ends; the containers there go on."""
    node = node_of(job, pod)
    ready_again(job, node, undo)
    undo.callback(job.cluster.on_node, node, "systemctl", "start", "kubelet")
    job.cluster.on_node(node, "systemctl", "stop", "kubelet")


FAULTS = (
    Fault("a rank is killed", kill, "Signal", in_place=True),
    Fault("a rank is stopped", stop, "Hang", in_place=True),
    Fault("a rank outgrows its memory", asking("eat"), "OOMKilled", in_place=True),
    Fault("a rank raises an exception", asking("raise"), "Exception", in_place=True),
    Fault("a pod is deleted", delete, "PodDeleted", charged=False, replaced=True),
    Fault("a pod is evicted", drain, "Evicted", charged=False, replaced=True),
    Fault("a pod is preempted", preempt, "Preempted", charged=False, replaced=True),
    Fault("a node's kubelet dies", lose_node, "NodeLost", charged=False, most_seconds=NODE_LOST),
)

LARGER = Fault(
    "the script saves, and a node is missing", asking("..$DDPJOB_CHECKPOINT_DIR/x"), "", rank=0
)


@contextmanager
def steady_job(
    cluster: KindCluster,
    namespace: str,
    image: str,
    strategy: str = "InPlace",
    nnodes: int = 2,
    hang_seconds: int = HANG_SECONDS,
    nproc: int = 1,
    checkpoint_mb: int = 0,
    template: Body = TEMPLATE,
    **more: Any,
) -> Iterator[Job]:
    """A job of two pods on two nodes, by default, that trains until it is deleted.

    `more` is of its spec.

    `checkpoint_mb`: each rank loads a checkpoint of this size first, from a folder of the host.
    """
    cluster.kubectl("create", "configmap", "script", "-n", namespace, f"--from-file={SCRIPT}")
    volumes, mounts, env = [VOLUME], [MOUNT], list[Any]()
    if checkpoint_mb or "checkpoint" in more:
        cluster.shared_claim(namespace, "disk")
    if checkpoint_mb:
        volumes.append({"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}})
        mounts.append({"name": "disk", "mountPath": "/disk"})
        env.append({"name": "CHECKPOINT_MB", "value": str(checkpoint_mb)})
    job = Job.from_spec(
        cluster,
        namespace,
        "steady",
        image=image,
        nnodes=nnodes,
        nprocPerNode=nproc,
        env=env,
        args=[f"/script/{SCRIPT.name}"],
        resources={
            "limits": {"cpu": "1", "memory": f"{1 + (nproc > 1) + 2 * (checkpoint_mb > 0)}Gi"},
            "requests": {"cpu": f"{CPU_MILLIS}m"},
        },
        hangTimeoutSeconds=hang_seconds,
        failurePolicy={
            "maxRestarts": 1000,
            "backoffSeconds": {"first": 1, "cap": 1},
            "restartStrategy": strategy,
        },
        volumes=volumes,
        volumeMounts=mounts,
        template=template,
        **more,
    )
    wait_until(lambda: stepped_at(job, pods_of(job), 0, nproc), 300, "first step")
    yield job
    job.delete()


def pods_of(job: Job) -> list[str]:
    """Names of the job's pods by their ranks, without those that others have replaced."""
    status = job.status
    found = [(placed(pod, status), name) for name, pod in job.pods().items()]
    latest = {place[1]: name for place, name in sorted(found) if place[1] >= 0}
    return [latest[rank] for rank in sorted(latest)]


def spare_of(job: Job) -> str:
    """Name of the spare, once it runs."""
    status = job.until(lambda status: status["nodes"].get("spares") == 1, 180, "spare")
    found = [(placed(pod, status)[1], name) for name, pod in job.pods().items()]
    return min(found)[1]


def shrink(job: Job) -> None:
    """Have an elastic job lose a node, and a pod for it wait until the group may get larger."""
    delete(job, pods_of(job)[1], ExitStack())
    job.until(lambda status: status["nodes"]["desired"] == 1, 180, "smaller group")
    spare_of(job)
    time.sleep(job.spec["elastic"]["growSeconds"])


def stepped_at(job: Job, pods: Sequence[str], since: float, nproc: int = 1) -> float | None:
    """When all ranks of these pods had made a first step after a Unix time; None if they have not.

    The first one of a process: those of one pod follow each other in its log.
    """
    found = []
    for pod in pods:
        where = (pod, "-c", job.container, "-n", job.namespace)
        log = job.cluster.kubectl("logs", *where, check=False)
        first = first_steps(log, since)
        if len(first) < nproc:
            return None
        found += first
    return max(found)


def first_steps(log: str, since: float) -> list[float]:
    """When each rank in a log of SCRIPT made a first step after a Unix time."""
    found: dict[str, float] = {}
    for line in map(without_rank, log.splitlines()):
        if line.startswith("first step"):
            _, _, rank, at = line.split()
            if float(at) > since:
                found.setdefault(rank, float(at))
    return [*found.values()]


def kill_operator(cluster: KindCluster) -> None:
    """Without warning; its Deployment starts another."""
    where = ("-n", SYSTEM, "-l", "app.kubernetes.io/name=ddpjob")
    cluster.kubectl("delete", "pods", *where, "--force", "--grace-period=0", "--wait=false")


def recover(
    job: Job,
    fault: Fault,
    *,
    without_operator: bool = False,
    look: Callable[[], None] = lambda: None,
) -> Recovery:
    """Let `fault` happen to its pod, and wait until the ranks train again.

    Then `look`, before what the fault has done is put right.
    """
    status = job.status
    before = status["attempt"], status.get("round", 0)
    shown = '{.status.attempt} {.status.round} {.status.state}{"\\n"}'
    watch = ("get", "ddpjob", job.name, "-n", job.namespace, "--watch", f"-o=jsonpath={shown}")
    with ExitStack() as undo:
        seen = undo.enter_context(job.cluster.kubectl_lines(*watch))
        wait_until(lambda: seen, 30, "watch")
        pod = pods_of(job)[fault.rank]
        began = time.time()
        began = fault.happens(job, pod, undo) or began
        if without_operator:
            kill_operator(job.cluster)
        times = []
        for what, state in {"restart": "", "running nodes": "Running"}.items():

            def has_come(state: str = state) -> float | None:
                later = ((at, line) for at, line in seen if _place(line) > before)
                return next((at for at, line in later if line.endswith(state)), None)

            at = wait_until(has_come, fault.most_seconds, f"{what} after: {fault.name}")
            times.append((at or 0) - began)
        stepped = wait_until(
            lambda: stepped_at(job, pods_of(job), began, job.spec["nprocPerNode"]),
            fault.most_seconds,
            f"step: {fault.name}",
        )
        look()
    return Recovery(times[0], times[1], (stepped or 0) - began)


def _place(line: str) -> tuple[int, int]:
    attempt, number, _ = line.split(" ")
    return int(attempt or 0), int(number or 0)
