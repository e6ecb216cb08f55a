"""Schedulers of gangs, and Kueue, as processes beside a control plane."""

import json
import socket
import urllib.request
from base64 import b64decode
from contextlib import suppress
from typing import Any

import yaml

from tests.chart.rendering import Helm, documents
from tests.cluster import binaries
from tests.cluster.apiserver import ApiServer
from tests.cluster.processes import Component, free_ports
from tests.waiting import wait_for

GATES = "GenericWorkload=true"

NATIVE = {
    "kube-apiserver": [
        f"--feature-gates={GATES}",
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
    ],
    "kube-controller-manager": [f"--feature-gates={GATES}"],
    "kube-scheduler": [f"--feature-gates={GATES}"],
}
"""What Kubernetes' own gangs need."""

VOLCANO_CONFIG = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""
PERMIT_SECONDS = 10
"""After which coscheduling gives up a gang that is placed in part."""


def native(*, gate_of_the_scheduler: bool = True) -> ApiServer:
    """A control plane of a release that has gangs."""
    arguments = dict(NATIVE)
    if not gate_of_the_scheduler:
        del arguments["kube-scheduler"]
    programs = binaries.build(binaries.QUEUES["kubernetes-gangs"])
    return ApiServer(extra_arguments=arguments, programs=programs)


def scheduler(server: ApiServer, kind: str) -> Component:
    """The scheduler of this kind, not started, with its API installed."""
    if kind == "kubernetes":
        return server.components["kube-scheduler"]
    return (_volcano if kind == "volcano" else _coscheduling)(server)


def _volcano(server: ApiServer) -> Component:
    module = binaries.QUEUES["volcano"]
    folder = binaries.module_folder(module, "volcano.sh/volcano@v1.10.0")
    server.install_crd(*sorted((folder / "config/crd/volcano/bases").glob("*.yaml")))
    queues = "/apis/scheduling.volcano.sh/v1beta1/queues"
    for name in ("default", "research"):
        body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
        made = {**body, "metadata": {"name": name}, "spec": {"weight": 1, "reclaimable": True}}
        server.request("POST", queues, made)
        status = {"status": {"state": "Open", "allocated": {}}}
        server.request("PATCH", f"{queues}/{name}/status", status, kind="merge-patch+json")
    config = server.folder / "volcano.yaml"
    config.write_text(VOLCANO_CONFIG)
    ports = free_ports(2)
    return Component(
        binaries.build(module)["volcano-scheduler"],
        [
            f"--kubeconfig={server.kubeconfig}",
            f"--scheduler-conf={config}",
            "--leader-elect=false",
            f"--listen-address=127.0.0.1:{ports[0]}",
            f"--healthz-address=127.0.0.1:{ports[1]}",
            f"--cache-dump-dir={server.folder}/volcano",
            "--logtostderr",
        ],
        log=server.folder / "volcano.log",
    )


def _coscheduling(server: ApiServer) -> Component:
    module = binaries.QUEUES["coscheduling"]
    folder = binaries.module_folder(module, "sigs.k8s.io/scheduler-plugins@v0.34.7")
    server.install_crd(folder / "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(server.kubeconfig)},
        "profiles": [
            {
                "schedulerName": "scheduler-plugins-scheduler",
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                    "queueSort": {
                        "enabled": [{"name": "Coscheduling"}],
                        "disabled": [{"name": "*"}],
                    },
                },
                "pluginConfig": [
                    {
                        "name": "Coscheduling",
                        "args": {"permitWaitingTimeSeconds": PERMIT_SECONDS},
                    }
                ],
            }
        ],
    }
    path = server.folder / "coscheduling.json"
    path.write_text(json.dumps(config))
    return Component(
        binaries.build(module)["scheduler-plugins-scheduler"],
        [f"--config={path}", "--secure-port=0"],
        log=server.folder / "coscheduling.log",
    )


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


class Kueue:
    """Kueue as its chart installs it, webhooks included, but as a process. A context manager."""

    def __init__(self, server: ApiServer, **config: Any) -> None:
        """`config` replaces parts of Kueue's Configuration."""
        module = binaries.QUEUES["kueue"]
        self._server = server
        self._chart = binaries.module_folder(module, "sigs.k8s.io/kueue@v0.19.2") / "charts/kueue"
        self._program = binaries.build(module)["kueue"]
        self._config = config

    def __enter__(self) -> "Kueue":
        self._webhooks, health, metrics = free_ports(3)
        self.health = f"http://127.0.0.1:{health}/readyz"
        config = self._install()
        config["health"] = {"healthProbeBindAddress": f"127.0.0.1:{health}"}
        config["metrics"] = {"bindAddress": f"127.0.0.1:{metrics}"}
        self._certificates = self._server.folder / "kueue-certificates"
        self._certificates.mkdir()
        config["webhook"] = {
            "port": self._webhooks,
            "host": "127.0.0.1",
            "certDir": str(self._certificates),
        }
        config["leaderElection"] = {"leaderElect": False}
        self._all = {**config, **self._config}
        self._path = self._server.folder / "kueue.yaml"
        self.component = Component(
            self._program,
            [
                f"--config={self._path}",
                f"--kubeconfig={self._server.kubeconfig}",
                "--feature-gates=VisibilityOnDemand=false",
            ],
            log=self._server.folder / "kueue.log",
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.component.kill()

    def start(self, **config: Any) -> None:
        """Start it, with these parts of its Configuration as well, and wait until it answers."""
        self.component.kill()
        self._path.write_text(yaml.safe_dump({**self._all, **config}))
        wait_for(self._is_ready, lambda: self.component.log.read_text()[-3000:])

    def _is_ready(self) -> bool:
        """Its first part, which makes certificates, answers too, and leaves a port too late."""
        if not self.component.runs:  # as a kubelet would
            self.component.start()
        self._mount_certificates()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._webhooks), 5):
            return _answers(self.health)
        return False

    def _mount_certificates(self) -> None:
        """What a kubelet does with the Secret."""
        path = "/api/v1/namespaces/kueue-system/secrets/kueue-webhook-server-cert"
        for name, content in (self._server.request("GET", path).get("data") or {}).items():
            target = self._certificates / name
            if not target.exists():
                target.write_bytes(b64decode(content))

    def _install(self) -> dict[str, Any]:
        """Apply all of the chart that needs no kubelet; Kueue's configuration."""
        text = Helm(binaries.helm(), self._chart).template(
            release="kueue", namespace="kueue-system"
        )
        config: dict[str, Any] = {}
        kept = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}]
        for body in documents(text):
            kind = body["kind"]
            if kind == "ConfigMap":
                config = yaml.safe_load(body["data"]["controller_manager_config.yaml"])
            if kind in ("Deployment", "APIService", "PodDisruptionBudget"):
                continue
            if body["metadata"]["name"] == "kueue-webhook-service":
                body["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            kept.append(self._with_port(body))
        listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": kept})
        self._server.kubectl("apply", "--server-side", "-f", "-", input=listing)
        return config

    def _with_port(self, value: Any) -> Any:
        """The same, with the port of our webhooks."""
        if isinstance(value, list):
            return [self._with_port(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: self._with_port(each) for name, each in value.items()}
        if (
            found.get("name") == "kueue-webhook-service"
            and "namespace" in found
            and "path" in found
        ):
            found["port"] = self._webhooks
        return found
