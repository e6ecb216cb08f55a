"""The cluster that the e2e tests rely on: three nodes, storage that they share, our images."""

import json
from typing import Any

from tests.cluster.kind import USER_ID, KindCluster


def pod_on(node: str, name: str, image: str, script: str, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": ["sh", "-c", script], **more}
    claim = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "securityContext": {"runAsUser": USER_ID, "runAsGroup": USER_ID},
            "containers": [container],
            "volumes": [claim],
        },
    }


def run_to_end(cluster: KindCluster, namespace: str, pod: dict[str, Any]) -> str:
    name = pod["metadata"]["name"]
    cluster.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(pod))
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl(
        "-n", namespace, "wait", phase, f"pod/{name}", "--timeout=300s", timeout_seconds=310
    )
    return cluster.kubectl("-n", namespace, "logs", name)


def test_three_nodes_are_ready_and_two_take_pods(kind_cluster: KindCluster) -> None:
    assert len(kind_cluster.nodes()) == 3
    assert len(kind_cluster.workers()) == 2
    ready = [
        condition["status"]
        for node in kind_cluster.get("nodes")["items"]
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert ready == ["True"] * 3


def test_a_pod_reads_on_one_node_what_another_wrote_on_the_other(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    kind_cluster.shared_claim(namespace, "shared")
    first, second = kind_cluster.workers()
    mount = [{"name": "shared", "mountPath": "/shared"}]
    writer = pod_on(first, "writer", trainer_image, "echo hello > /shared/word", volumeMounts=mount)
    reader = pod_on(second, "reader", trainer_image, "cat /shared/word", volumeMounts=mount)
    run_to_end(kind_cluster, namespace, writer)
    assert run_to_end(kind_cluster, namespace, reader) == "hello\n"


def test_the_foreign_image_has_torch_and_nothing_of_ours(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    script = "torchrun --help > /dev/null && python3 -c 'import ddptrain'"
    kind_cluster.shared_claim(namespace, "shared")
    pod = pod_on(kind_cluster.workers()[0], "foreign", foreign_image, f"{script} || echo absent")
    assert "No module named 'ddptrain'" in (said := run_to_end(kind_cluster, namespace, pod)), said
