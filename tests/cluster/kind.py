"""A cluster with real kubelets, made by kind, for the e2e tests."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import psutil
import yaml

from tests.cluster import binaries
from tests.cluster.images import Images
from tests.cluster.processes import Guardian
from tests.cluster.tiers import ROOT, Unavailable

CONFIG = ROOT / "tests" / "e2e" / "kind.yaml"
PREFIX = "ddpjob-e2e-"
USER_ID = 10001  # owner of shared folders: what our pods run as
CREATE_SECONDS = 600  # s; 45 s on 2 cores, with the node image present
PULL_SECONDS = 1800  # s; 85 s on 2 cores for 2.7 GB of torch, over 10 min on one kept busy


class KindCluster:
    """A running kind cluster. A context manager: entering creates it, leaving deletes it."""

    def __init__(self) -> None:
        """Raises Unavailable where kind cannot work."""
        check_kind_works()
        self.name = f"{PREFIX}{os.getpid()}"
        self._kubectl, self._helm = binaries.kubectl(), binaries.helm()
        self._images = Images(self.name)

    def __enter__(self) -> Self:
        _delete_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        ending = f'kind delete cluster --name {self.name}; rm -rf "{self.folder}"'
        self._guardian = Guardian(["sh", "-c", ending])
        self.kubeconfig = self.folder / "kubeconfig"
        try:
            self._create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the cluster and its folder."""
        # Written by the pods' users, so the nodes' root must remove it, not ours.
        self._shell("rm -rf /shared/*", check=False)
        self._guardian.close()

    def _create(self) -> None:
        shared = self.folder / "shared"
        shared.mkdir()
        config = yaml.safe_load(CONFIG.read_text())
        for node in config["nodes"]:
            node["extraMounts"][0]["hostPath"] = str(shared)
        config["containerdConfigPatches"] = self._images.containerd_patches()
        path = self.folder / "kind.yaml"
        path.write_text(yaml.safe_dump(config))
        image = os.environ.get("KIND_NODE_IMAGE")
        command = ["kind", "create", "cluster", "--name", self.name, "--config", str(path)]
        command += ["--kubeconfig", str(self.kubeconfig)]
        _run(*command, *(["--image", image] if image else []))
        # `kind create --wait` would wait for the control plane's node alone.
        self.kubectl(
            "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s", timeout_seconds=330
        )
        # Tests stop the other nodes, and two of their pods need the whole of one.
        selector = {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}
        patch = json.dumps({"spec": {"template": {"spec": selector}}})
        dns = ("-n", "kube-system", "deployment/coredns")
        self.kubectl("patch", *dns, "-p", patch)
        self.kubectl("rollout", "status", *dns, "--timeout=180s", timeout_seconds=200)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = True,
        timeout_seconds: float = 120,
    ) -> str:
        """What `kubectl` prints; with `check=False` its complaints too.

        Raises AssertionError with the complaint where it fails.
        """
        return self._call(str(self._kubectl), arguments, input, check, timeout_seconds)

    @contextmanager
    def following(self, log: Path, *arguments: str) -> Iterator[None]:
        """`kubectl logs --follow` into this file, which is complete at the end."""
        command = [str(self._kubectl), "logs", "--follow", *arguments]
        with (
            log.open("w") as file,
            subprocess.Popen(command, stdout=file, stderr=file, env=self._environment) as process,
        ):
            try:
                yield
                process.wait(60)
            finally:
                process.kill()

    @contextmanager
    def kubectl_lines(self, *arguments: str) -> Iterator[list[tuple[float, str]]]:
        """What a `kubectl` prints while the block runs: lines with the Unix time of their arrival.

        A thread adds to the list.
        """
        found: list[tuple[float, str]] = []

        def read(output: IO[str]) -> None:
            for line in output:
                found.append((time.time(), line.rstrip("\n")))

        with subprocess.Popen(
            [str(self._kubectl), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        ) as process:
            assert process.stdout is not None
            reader = threading.Thread(target=read, args=(process.stdout,))
            reader.start()
            try:
                yield found
            finally:
                process.kill()
                reader.join()

    def helm(self, *arguments: str) -> str:
        """What `helm` prints, as `kubectl` does."""
        return self._call(str(self._helm), arguments, None, True, 300)

    def _call(
        self, program: str, arguments: Sequence[str], input: str | None, check: bool, seconds: float
    ) -> str:
        ended = subprocess.run(
            [program, *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self._environment,
        )
        if check and ended.returncode != 0:
            complaint = (ended.stderr + ended.stdout).strip()
            raise AssertionError(f"{Path(program).name} {' '.join(arguments)}: {complaint}")
        return ended.stdout if check else ended.stdout + ended.stderr

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def get(self, *arguments: str) -> Any:
        """Decoded answer of `kubectl get … -o json`."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects, server-side."""
        listing = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(listing))

    def load_image(self, name: str) -> str:
        """Bring an image that was built on this machine to the workers; the name for pods.

        Raises Unavailable where it was not built.
        """
        if self._images.load(name):
            self._pull(name)
        return name

    def _pull(self, image: str) -> None:
        """Have all workers pull at once, the newest image of this name, before any test waits."""
        self.on_workers(image, "true", imagePullPolicy="Always")

    def on_workers(self, image: str, *command: str, **more: str) -> None:
        """Run a command in this image on all workers at once; `more` is of its container."""
        container = {"name": "once", "image": image, "command": command, **more}
        pods = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"once-{node}"},
                "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container]},
            }
            for node in self.workers()
        ]
        names = [f"pod/once-{node}" for node in self.workers()]
        self.apply(*pods)
        done = ("--for=jsonpath={.status.phase}=Succeeded", f"--timeout={PULL_SECONDS}s")
        self.kubectl("wait", *done, *names, timeout_seconds=PULL_SECONDS + 30)
        self.kubectl("delete", *names)

    def nodes(self) -> list[str]:
        """Names of the nodes, which are also names of the containers that they are."""
        return sorted(node["metadata"]["name"] for node in self.get("nodes")["items"])

    def workers(self) -> list[str]:
        """Names of the nodes that take pods."""
        return [name for name in self.nodes() if "worker" in name]

    def on_node(self, node: str, *command: str, check: bool = True) -> str:
        """What a command prints that runs as root on a node."""
        return _run(_runtime(), "exec", node, *command, check=check)

    def _shell(self, script: str, *, check: bool = True) -> None:
        self.on_node(f"{self.name}-control-plane", "sh", "-c", script, check=check)

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be created in it."""
        self.kubectl("create", "namespace", name)
        self.kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=200s")

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace, without waiting, and the shared volumes claimed from it."""
        self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
        self.kubectl("delete", "persistentvolume", "--wait=false", "-l", f"ddpjob-test={name}")

    def shared_claim(self, namespace: str, name: str) -> None:
        """A ReadWriteMany claim, bound to an empty folder that all nodes share.

        The folder belongs to the user of our pods, since Kubernetes applies no fsGroup to hostPath.
        """
        folder = f"/shared/{namespace}/{name}"
        self._shell(f"install -d -o {USER_ID} -g {USER_ID} {folder}")
        size = {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = f"{namespace}-{name}"
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {"ddpjob-test": namespace}},
                "spec": {
                    **common,
                    "capacity": size,
                    "hostPath": {"path": folder},
                    "claimRef": {"namespace": namespace, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {**common, "resources": {"requests": size}, "volumeName": volume},
            },
        )
        self.kubectl(
            "-n",
            namespace,
            "wait",
            f"pvc/{name}",
            "--for=jsonpath={.status.phase}=Bound",
            "--timeout=200s",
        )

    def dump(self, namespace: str) -> str:
        """What a reader of a failed test wants to know of its namespace."""
        said = [
            self.kubectl("-n", namespace, *what, check=False)
            for what in (
                ("get", "pods,services,configmaps,pvc", "-o", "wide"),
                ("get", "events", "--sort-by=.lastTimestamp"),
                ("get", "ddpjobs", "-o", "yaml"),
                ("describe", "pods"),
            )
        ]
        names = self.kubectl("-n", namespace, "get", "pods", "-o", "name", check=False).split()
        for pod in (name for name in names if name.startswith("pod/")):
            logs = self.kubectl(
                "-n", namespace, "logs", pod, "--all-containers", "--tail=100", check=False
            )
            said.append(f"--- logs of {pod}\n{logs}")
        return "\n".join(said)


def check_kind_works() -> None:
    """Raises Unavailable where kind or what it runs nodes with is missing."""
    if not shutil.which("kind"):
        raise Unavailable("kind not found", remedy="install kind (kind.sigs.k8s.io) and Docker")
    runtime = _runtime()
    if (
        not shutil.which(runtime)
        or subprocess.run([runtime, "info"], capture_output=True, timeout=200).returncode
    ):
        raise Unavailable(
            f"{runtime} does not answer",
            remedy=f"start {runtime}, and see that `{runtime} info` works",
        )


def _runtime() -> str:
    """What kind runs its nodes with."""
    return os.environ.get("KIND_EXPERIMENTAL_PROVIDER", "docker")


def _clusters() -> list[str]:
    return _run("kind", "get", "clusters", "--quiet").split()


def _delete_orphans() -> None:
    """Delete the clusters of test runs that are no more."""
    for name in _clusters():
        pid = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pid.isdigit() and not psutil.pid_exists(int(pid)):
            _run("kind", "delete", "cluster", "--name", name)


def _run(*command: str, check: bool = True) -> str:
    """What a command prints. Raises RuntimeError with its complaint where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=CREATE_SECONDS)
    if check and ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(ended.stderr + ended.stdout).strip()[-3000:]}")
    return ended.stdout
