"""The operator in the kind cluster, installed as the README says, and jobs as people apply them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ddpjob import names
from ddpjob.json_depth import Body
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.waiting import wait_for

SYSTEM = "ddpjob-system"
OPERATOR = "ddpjob-operator"  # its Deployment, and its Lease
CHART = ROOT / "charts" / "ddpjob"
EXAMPLES = ROOT / "examples"
CRD = f"{names.PLURAL}.{names.GROUP}"
KINDS = "ddpjobs,pods,services,configmaps,networkpolicies"

T = TypeVar("T")


def install(
    cluster: KindCluster, namespace: str = SYSTEM, *flags: str, chart: Path = CHART
) -> None:
    """Install the chart with its defaults or these flags, and wait until the operator is ready."""
    uninstall(cluster, namespace)  # a kept cluster may hold an older one
    try:
        cluster.helm(
            *("install", "ddpjob", str(chart), "--namespace", namespace, "--create-namespace"),
            *("--wait", "--timeout", "120s", *flags),
        )
    except AssertionError as error:
        where = ("-n", namespace)
        said = cluster.kubectl("logs", *where, f"deploy/{OPERATOR}", check=False)
        pods = cluster.kubectl("describe", "pods", *where, check=False)
        raise AssertionError(f"{error}\n{said}\n{pods}") from None


def uninstall(cluster: KindCluster, namespace: str = SYSTEM) -> None:
    """Take the chart away again; the CRD stays."""
    cluster.helm("uninstall", "ddpjob", "--namespace", namespace, "--wait", "--ignore-not-found")


def scale_operator(cluster: KindCluster, replicas: int) -> None:
    """Start so many of the operator, and wait until they run."""
    where = ("-n", SYSTEM, f"deployment/{OPERATOR}")
    cluster.kubectl("scale", *where, f"--replicas={replicas}")
    cluster.kubectl("rollout", "status", *where, "--timeout=120s", timeout_seconds=150)
    wait_until(lambda: bool(replicas) or not operator_pods(cluster), 90, "the operator's end")


def operator_pods(cluster: KindCluster) -> list[Body]:
    """Pods of the operator itself."""
    labels = "app.kubernetes.io/name=ddpjob"
    items: list[Body] = cluster.get("pods", "-n", SYSTEM, "-l", labels)["items"]
    return items


def evict(cluster: KindCluster, namespace: str, pod: str) -> None:
    """What `kubectl drain` does to each pod. Raises AssertionError where it is refused."""
    metadata = {"name": pod, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))


def wait_until(look: Callable[[], T | None], seconds: float, what: str) -> T:
    """The first true value of `look`. Raises TimeoutError that says what was waited for."""
    found = wait_for(look, lambda: what, seconds=seconds, every=0.5)
    assert found is not None
    return found


def holder(cluster: KindCluster, *, other_than: str = "") -> str:
    """Name of the operator's pod that holds the Lease, once it is another one."""

    def look() -> str:
        spec = cluster.get("lease", OPERATOR, "-n", SYSTEM).get("spec") or {}
        name = (spec.get("holderIdentity") or "").rpartition("_")[0]
        names = [pod["metadata"]["name"] for pod in operator_pods(cluster)]
        return name if name != other_than and name in names else ""

    return wait_until(look, 60, f"holder of the Lease but {other_than or 'nobody'}")


def part_replicas(cluster: KindCluster) -> None:
    """Have the two replicas on two nodes again: the loss of one leaves both on the other."""
    leader = holder(cluster)
    nodes = {pod["spec"].get("nodeName") for pod in operator_pods(cluster)}
    if len(nodes) == 1:
        for pod in operator_pods(cluster):
            if pod["metadata"]["name"] != leader:
                cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", SYSTEM)
    where = ("-n", SYSTEM, f"deployment/{OPERATOR}")
    cluster.kubectl("rollout", "status", *where, "--timeout=120s", timeout_seconds=150)


def leader_node(cluster: KindCluster) -> str:
    """Name of the node of the operator's pod that holds the Lease."""
    leader = holder(cluster)
    pods = {pod["metadata"]["name"]: pod["spec"] for pod in operator_pods(cluster)}
    node: str = pods[leader]["nodeName"]
    return node


class Job:
    """A DDPJob in the cluster, seen through kubectl alone."""

    container = "trainer"
    """The one that trains."""

    def __init__(self, cluster: KindCluster, namespace: str, name: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    @classmethod
    def from_file(cls, cluster: KindCluster, namespace: str, file: Path) -> "Job":
        """`kubectl apply -f` of the file as it is."""
        found = json.loads(cluster.kubectl("apply", "-n", namespace, "-f", str(file), "-o", "json"))
        return cls(cluster, namespace, found["metadata"]["name"])

    @classmethod
    def from_spec(cls, cluster: KindCluster, namespace: str, name: str, **spec: Any) -> "Job":
        """A job of this spec."""
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": spec}
        body["metadata"] = {"name": name}
        cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(body))
        return cls(cluster, namespace, name)

    @property
    def status(self) -> Body:
        """Its status now; empty before the first."""
        found = self.cluster.get("ddpjob", self.name, "-n", self.namespace)
        return dict[str, Any](found.get("status") or {})

    @property
    def spec(self) -> Body:
        """Its spec, with the defaults that the schema gives."""
        return dict[str, Any](self.cluster.get("ddpjob", self.name, "-n", self.namespace)["spec"])

    def columns(self) -> dict[str, str]:
        """What `kubectl get ddpjob` shows, by column."""
        text = self.cluster.kubectl("get", "ddpjob", self.name, "-n", self.namespace)
        header, line = text.splitlines()
        starts = [header.index(name) for name in header.split()]
        ends: list[int | None] = [*starts[1:], None]
        return {
            header[start:end].strip(): line[start:end].strip()
            for start, end in zip(starts, ends, strict=True)
        }

    def until(self, holds: Callable[[Body], Any], seconds: float, what: str) -> Body:
        """Its status once `holds`; a job that has ended otherwise is not waited for."""

        def look() -> Body | None:
            status = self.status
            if holds(status):
                return status
            if status.get("state") in ("Succeeded", "Failed"):
                raise AssertionError(f"{self.name} has ended without {what}: {status}")
            return None

        found = wait_until(look, seconds, f"{what} of {self.name}")
        assert found is not None
        return found

    def in_state(self, state: str, seconds: float = 180) -> Body:
        """Its status once it is in this state."""
        return self.until(lambda status: status.get("state") == state, seconds, state)

    def pods(self) -> dict[str, Body]:
        """Its pods by name."""
        selector = f"{names.JOB_LABEL}={self.name}"
        items = self.cluster.get("pods", "-n", self.namespace, "-l", selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def logs(self, pod: str) -> str:
        """What a pod has printed."""
        return self.cluster.kubectl("logs", "-n", self.namespace, pod)

    def logs_if_any(self, pod: str) -> str:
        """The same while the pod may not have begun."""
        return self.cluster.kubectl("logs", "-n", self.namespace, pod, check=False)

    def patch(self, **spec: Any) -> None:
        """Change fields of the spec."""
        body = json.dumps({"spec": spec})
        where = ("ddpjob", self.name, "-n", self.namespace)
        self.cluster.kubectl("patch", *where, "--type=merge", "-p", body)

    def delete(self, *, wait: bool = True) -> None:
        """`kubectl delete ddpjob`."""
        self.cluster.kubectl("delete", "ddpjob", self.name, "-n", self.namespace, f"--wait={wait}")


def rank_processes(cluster: KindCluster, node: str, uid: str, script: str) -> list[str]:
    """Pids, on its node, of a pod's training processes; not of torchrun, nor of the agent."""
    search = (
        "for p in /proc/[0-9]*; do "
        f"grep -q -e {uid.replace('-', '_')} -e {uid} $p/cgroup 2>/dev/null || continue; "
        f"tr '\\0' ' ' < $p/cmdline | grep -q -e '-u [^ ]*{script}' -e '-u -m {script}' && "
        "echo ${p#/proc/}; done; true"  # the last one need not be it
    )
    return cluster.on_node(node, "sh", "-c", search).split()


def signal_rank(job: Job, pod: str, signal: str, script: str) -> float:
    """A signal to one of a pod's training processes, from its node; its Unix time.

    Not to torchrun, not to the agent.
    """
    found = job.pods()[pod]
    node = found["spec"]["nodeName"]
    pids = rank_processes(job.cluster, node, found["metadata"]["uid"], script)
    assert pids, "no such process"
    command = f"date +%s.%N && kill -{signal} {pids[-1]}"
    return float(job.cluster.on_node(node, "sh", "-c", command))


def left_over(cluster: KindCluster, *where: str) -> list[str]:
    """`kind/name` of everything of a job's that exists, in one namespace or with -A in all."""
    label = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
    items = cluster.get(KINDS, *where, "-l", label)["items"]
    items += cluster.get("ddpjobs", *where)["items"]
    return sorted({f"{found['kind']}/{found['metadata']['name']}" for found in items})


def gone(cluster: KindCluster, *where: str, seconds: float = 120) -> None:
    """Wait until nothing of any job is left."""
    wait_until(
        lambda: not left_over(cluster, *where), seconds, f"end of {left_over(cluster, *where)}"
    )
