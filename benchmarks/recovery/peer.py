"""The same faults under a PyTorchJob of Kubeflow's Training Operator v1.8.1, on the same nodes.

Its manifests come from its Go module, its image from `benchmarks/recovery/training-operator/build`.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import yaml

from ddpjob.json_depth import Body
from tests.cluster import binaries
from tests.cluster.kind import KindCluster
from tests.e2e import recovery, silence
from tests.e2e.install import Job, wait_until
from tests.e2e.recovery import (
    CPU_MILLIS,
    MOUNT,
    SCRIPT,
    SPREAD,
    VOLUME,
    Fault,
    Recovery,
    stepped_at,
)

IMAGE = "ddpjob-test/training-operator:1.8.1"
MODULE = "github.com/kubeflow/training-operator"
SYSTEM, WEBHOOK = "kubeflow", "validator.training-operator.kubeflow.org"
JOB_LABEL = "training.kubeflow.org/job-name"
ON_CONTROL_PLANE = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
}
MOST_SECONDS = 60.0  # a job that has not recovered by then is not waited for
# Its own image for the workers' init container (alpine) is not in the cluster, and the script's has
# no nslookup. Else this is its own template.
INIT_CONTAINER = """\
- name: init-pytorch
  image: {{.InitContainerImage}}
  imagePullPolicy: IfNotPresent
  resources:
    limits: {cpu: 100m, memory: 20Mi}
    requests: {cpu: 50m, memory: 10Mi}
  command: [sh, -c, 'for i in $(seq {{.MaxTries}}); do getent hosts {{.MasterAddr}} && exit 0;
    echo waiting for master; sleep 2; done; exit 1']
"""


# A preemption takes the pod, as an eviction does; a dead kubelet is no node that is dead.
FAULTS = [
    *(f for f in recovery.FAULTS if f.reason not in ("Preempted", "NodeLost")),
    *(f for f in silence.FAULTS if f.name == "a node is cut off"),
]
ELASTIC_FAULTS = [f for f in FAULTS if f.in_place or f.reason == "PodDeleted"]


class PyTorchJob(Job):
    """A PyTorchJob of two pods."""

    container = "pytorch"

    def pods(self) -> dict[str, Body]:
        """Its pods by name: the master, if there is one, before the workers."""
        selector = f"{JOB_LABEL}={self.name}"
        items = self.cluster.get("pods", "-n", self.namespace, "-l", selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}


def manifests(cluster: KindCluster, image: str) -> list[Body]:
    """Its own, the namespace first. `image`: the script's, which the init container has too."""
    source = binaries.module_folder(binaries.TRAINING_OPERATOR, MODULE)
    folder = str(source / "manifests" / "overlays" / "standalone")
    said = cluster.kubectl("kustomize", folder)
    objects = [*yaml.safe_load_all(said)]
    objects.sort(key=lambda found: found["kind"] != "Namespace")
    (deployment,) = (found for found in objects if found["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    pod |= ON_CONTROL_PLANE  # a node of the job that is lost is not the operator's
    (container,) = pod["containers"]
    container["image"] = IMAGE
    container["command"] += ["--pytorch-init-container-image", image]
    container["volumeMounts"].append({"name": "config", "mountPath": "/etc/config"})
    pod["volumes"].append({"name": "config", "configMap": {"name": "init-container"}})
    metadata = {"name": "init-container", "namespace": SYSTEM}
    data = {"initContainer.yaml": INIT_CONTAINER}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    return [*objects, config]


@contextmanager
def installed(cluster: KindCluster, image: str) -> Iterator[None]:
    """Install it as its own manifests do, and wait until it works; uninstall it in the end."""
    objects = manifests(cluster, image)
    cluster.apply(*objects)
    where = ("-n", SYSTEM, "deployment/training-operator")
    cluster.kubectl("rollout", "status", *where, "--timeout=180s", timeout_seconds=200)

    def is_trusted() -> bool:
        """The API server believes the webhook once it has its certificate's authority."""
        hooks = cluster.get("validatingwebhookconfiguration", WEBHOOK)["webhooks"]
        return all(hook["clientConfig"].get("caBundle") for hook in hooks)

    wait_until(is_trusted, 60, "certificate of the webhook")
    yield
    cluster.kubectl(
        *("delete", "-f", "-", "--ignore-not-found"),
        input="\n---\n".join(map(json.dumps, objects)),
        timeout_seconds=200,
    )


def spec(image: str, *, elastic: bool) -> dict[str, Any]:
    """Of a job with two replicas and the defaults; `elastic`: torchrun starts workers again."""
    command = ["python3", "-u", f"/script/{SCRIPT.name}"]
    container = {
        "name": PyTorchJob.container,
        "image": image,
        "command": ["torchrun", *command[2:]] if elastic else command,
        "resources": {
            "limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": f"{CPU_MILLIS}m"},
        },
        "volumeMounts": [MOUNT],
    }
    selector = {"matchLabels": {JOB_LABEL: "steady"}}
    pod = {
        "containers": [container],
        "volumes": [VOLUME],
        "topologySpreadConstraints": [{**SPREAD, "labelSelector": selector}],
    }
    replica = {"replicas": 1, "template": {"spec": pod}}
    if not elastic:
        return {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}
    policy = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 2, "maxRestarts": 1000}
    return {
        "nprocPerNode": "1",  # else as many as the node has cores
        "elasticPolicy": policy,
        "pytorchReplicaSpecs": {"Worker": {**replica, "replicas": 2}},
    }


@contextmanager
def steady_job(
    cluster: KindCluster, namespace: str, image: str, *, elastic: bool
) -> Iterator[PyTorchJob]:
    """A job of two pods on two nodes that trains until it is deleted."""
    cluster.kubectl("create", "configmap", "script", "-n", namespace, f"--from-file={SCRIPT}")
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    body |= {"metadata": {"name": "steady"}, "spec": spec(image, elastic=elastic)}  # type: ignore[dict-item]
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(body))
    job = PyTorchJob(cluster, namespace, "steady")
    wait_until(lambda: len(pods := [*job.pods()]) == 2 and stepped_at(job, pods, 0), 300, "step")
    yield job
    cluster.kubectl("delete", "pytorchjob", job.name, "-n", namespace)
    # Python as the first process of a container does not end upon SIGTERM.
    everything = ("--all", "--force", "--grace-period=0", "--ignore-not-found")
    cluster.kubectl("delete", "pods", "-n", namespace, *everything)


def recover(job: PyTorchJob, fault: Fault) -> Recovery:
    """Let `fault` happen, and wait until the ranks train again, if they do."""
    with ExitStack() as undo:
        pods = [*job.pods()]  # new ones have the old names
        began = time.time()
        began = fault.happens(job, pods[fault.rank], undo) or began
        try:
            at = wait_until(lambda: stepped_at(job, pods, began), MOST_SECONDS, "step")
        except TimeoutError:
            return Recovery(None, None, math.inf)
        return Recovery(None, None, at - began)
