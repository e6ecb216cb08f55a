"""Jobs as an operator would have left them, for the commands that read."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddpjob import Client, names, why
from ddpjob.times import written
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer


def ago(**parts: float) -> str:
    """The time so long ago, as the API writes it."""
    return written(datetime.now(UTC) - timedelta(**parts))


def condition(kind: str, status: str, reason: str, message: str = "", since: str = "") -> Any:
    """A condition of a status."""
    return {
        **{"type": kind, "status": status, "reason": reason, "message": message},
        "lastTransitionTime": since or ago(seconds=40),
    }


@pytest.fixture
def client(api_server: ApiServer, crd: None, namespace: str) -> Iterator[Client]:
    """A client of the administrator, in the test's namespace."""
    made = Client(namespace, kubeconfig=api_server.kubeconfig)
    yield made
    made.connection.close()


class Cluster:
    """One namespace of a real API server, whose jobs the tests write themselves."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self._nodes = set[str]()
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"

    def close(self) -> None:
        """Delete the nodes that pods were on."""
        for name in self._nodes:
            self.server.request("DELETE", f"/api/v1/nodes/{name}")

    def job(self, name: str, *, user: str = "admin", **spec: Any) -> Any:
        """Create a job."""
        body = job_object(name, **{"nnodes": 2, **spec})
        body["metadata"] |= {
            "annotations": {names.USER_ANNOTATION: user},
            "labels": {"team": user},
        }
        return self.server.request("POST", self.jobs, body)

    def status(self, name: str, **status: Any) -> Any:
        """Write parts of a job's status."""
        path = f"{self.jobs}/{name}/status"
        return self.server.request("PATCH", path, {"status": status}, kind="merge-patch+json")

    def delete(self, name: str) -> None:
        self.server.request("DELETE", f"{self.jobs}/{name}")

    def pod(
        self,
        job: Any,
        rank: int,
        *,
        attempt: int = 0,
        state: str = "running",
        node: str = "gpu-1",
        init: Sequence[Any] = (),
    ) -> Any:
        """Create a pod of a job, as the operator does; `init` are its init containers."""
        meta = job["metadata"]
        owner = {
            **{"apiVersion": names.API_VERSION, "kind": names.KIND, "controller": True},
            **{"name": meta["name"], "uid": meta["uid"]},
        }
        labels = {names.JOB_LABEL: meta["name"], names.JOB_UID_LABEL: meta["uid"]}
        name = names.pod_name(meta["name"], attempt, rank)
        if node not in self._nodes:  # pods on nodes that do not exist are collected
            self.server.request("POST", "/api/v1/nodes", {"metadata": {"name": node}})
            self._nodes.add(node)
        pod = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {
                "initContainers": [{"image": "i", **each} for each in init],
                "containers": [{"name": names.TRAINER_CONTAINER, "image": "i"}],
                "terminationGracePeriodSeconds": 0,
                "nodeName": node,
            },
        }
        self.server.request("POST", self.pods, pod)
        return self.pod_state(name, state)

    def pod_state(self, name: str, state: str) -> Any:
        """Write the state of a pod's container: waiting, running or ended."""
        states = {
            "waiting": {"waiting": {"reason": "ContainerCreating"}},
            "running": {"running": {"startedAt": ago(seconds=1)}},
            "ended": {"terminated": {"exitCode": 1}},
        }
        status = {
            "containerStatuses": [
                {
                    **{"name": names.TRAINER_CONTAINER, "image": "i", "imageID": "i"},
                    **{"ready": state == "running", "restartCount": 0, "state": states[state]},
                }
            ]
        }
        return self.pod_status(name, **status)

    def init_failed(self, name: str, container: str, code: int, *, phase: str = "Failed") -> Any:
        """An init container of the pod ends with this exit code."""
        ended = {
            **{"name": container, "image": "i", "imageID": "i", "ready": False, "restartCount": 0},
            "state": {"terminated": {"exitCode": code}},
        }
        return self.pod_status(name, phase=phase, initContainerStatuses=[ended])

    def pod_status(self, name: str, **status: Any) -> Any:
        """Write parts of a pod's status."""
        path = f"{self.pods}/{name}/status"
        return self.server.request("PATCH", path, {"status": status}, kind="merge-patch+json")

    def delete_pod(self, name: str) -> None:
        """Delete a pod at once, as its kubelet would in the end."""
        self.server.request("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})

    def running(self, name: str, **spec: Any) -> Any:
        """A job that trains."""
        self.job(name, **spec)
        summary = {"nodes": "2/2", "step": "1840/20000", "loss": "3.021", "eta": "2h4m"}
        return self.status(
            name,
            state="Running",
            summary=summary,
            conditions=[condition("Running", "True", "AllNodesRunning")],
            worldSize=2,
        )

    def pending(self, name: str, *, minutes: float = 12) -> Any:
        """A job for which there is no room."""
        self.job(name)
        words = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
        since = ago(minutes=minutes)
        return self.status(
            name,
            state="Starting",
            summary={"nodes": "0/2", "reason": f"Unschedulable: {words}"},
            conditions=[condition("Running", "False", "Unschedulable", words, since)],
        )

    def failed(self, name: str, **failure: Any) -> Any:
        """A job that has failed for good, by rank 5."""
        self.job(name, nnodes=4)
        cause = {
            **{"attempt": 2, "round": 0, "rank": 5, "pod": f"{name}-2-2", "node": "gpu-17"},
            **{"reason": "ExitCode", "exitCode": 1, "time": ago(minutes=1)},
            "message": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            **failure,
        }
        ended = condition("Failed", "True", "MaxRestartsExceeded", "3 restarts; rank 5: ExitCode")
        reason = f"MaxRestartsExceeded: {why.cause({'failure': cause}, 2)}"
        return self.status(
            name,
            state="Failed",
            attempt=2,
            restarts=2,
            worldSize=8,
            summary={"nodes": "0/4", "step": "300/900", "loss": "0.912", "reason": reason},
            conditions=[ended, condition("Running", "False", "Finished")],
            failure=cause,
            nodes={"desired": 4, "failed": 4},
        )
