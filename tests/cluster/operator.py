"""The operator as a process of its own, with the rights that the chart gives it and no others."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import yaml

from tests.chart.rendering import Helm
from tests.cluster import binaries
from tests.cluster.apiserver import ApiServer
from tests.cluster.processes import RUN, free_ports
from tests.cluster.tiers import ROOT
from tests.waiting import wait_for
from tests.warm import PATHS, Popen, plain

INSTALL = ROOT / "manifests" / "install.yaml"
ACCOUNT = ("ddpjob-system", "ddpjob-operator")
USER = f"system:serviceaccount:{ACCOUNT[0]}:{ACCOUNT[1]}"
RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")


def installed_objects() -> list[dict[str, Any]]:
    """What `kubectl apply -f manifests/install.yaml` would create."""
    return [found for found in yaml.safe_load_all(INSTALL.read_text()) if found]


def grant_rights(server: ApiServer, *values: str) -> None:
    """Apply the install's service account and RBAC, without its Deployment.

    `values` are those of the chart that are not its defaults, such as `kueue.enabled=true`.
    """
    found = installed_objects()
    if values:
        words = (f"--set={value}" for value in (*values, "createNamespace=true"))
        found = Helm(binaries.helm()).objects(*words)
    items = [each for each in found if each["kind"] in RIGHTS]
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    server.kubectl("apply", "-f", "-", input=listing)


def _token_id(token: str) -> str:
    """The `jti` of a service account's token."""
    payload = token.split(".")[1]
    claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["jti"])


# A sitecustomize: of a machine with a clock that is wrong.
CLOCK = """
import time
real = time.time
time.time = lambda: real() + {}
"""


class OperatorProcess:
    """`python -m ddpjob.handlers` against `server`. A context manager; the log is in `log`."""

    def __init__(
        self,
        server: ApiServer,
        folder: Path,
        *arguments: str,
        url: str = "",
        clock: float = 0.0,
        values: Sequence[str] = (),
    ) -> None:
        """`url`: of a proxy before the server; then its rights have been granted already.

        `clock`: seconds by which its clock is ahead. `values`: of the chart, for its rights.
        """
        if not url:
            grant_rights(server, *values)
        token = server.service_account_token(*ACCOUNT)
        self.credential = f"JTI={_token_id(token)}"
        """By which the audit log tells this process from others of its account."""
        name = f"operator-{uuid.uuid4().hex[:8]}"
        self._kubeconfig = server.write_kubeconfig(folder / name, token=token, url=url)
        self._run = server.folder
        self._arguments = arguments
        self._path = PATHS
        if clock:
            (folder / "sitecustomize.py").write_text(CLOCK.format(clock))
            self._path += f":{folder}"
        self.log = folder / ("operator.log" if not url else f"{name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; returns before it is ready."""
        (self.port,) = free_ports(1)
        out: IO[bytes]
        with self.log.open("ab") as out:
            self.process = Popen(
                [
                    *(sys.executable, "-m", "ddpjob.handlers"),
                    *("--listen", f"127.0.0.1:{self.port}"),
                    "--loopback-agents",
                    *self._arguments,
                ],
                stdout=out,
                stderr=out,
                env={
                    **plain(),
                    "KUBECONFIG": str(self._kubeconfig),
                    "PYTHONPATH": self._path,
                    RUN: str(self._run),
                },
            )

    def wait_until_ready(self, seconds: float = 200.0) -> None:
        """Until its caches are full. Raises TimeoutError with its log."""

        def is_ready() -> bool:
            with suppress(OSError):
                self.get("/readyz")
                return True
            return False

        wait_for(is_ready, lambda: self.log.read_text()[-3000:], seconds=seconds)

    def get(self, path: str) -> str:
        """What its own HTTP server answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    @property
    def leads(self) -> bool:
        """Whether it works on jobs; False too where it does not answer, or has ended."""
        try:
            return "ddpjob_leader 1.0" in self.get("/metrics")
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it by this signal and wait; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=200)
