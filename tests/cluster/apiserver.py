"""A real control plane for the tests: etcd, API server, controller-manager and scheduler.

All listen on free loopback ports. Every namespace gets its `default` service account from the
controller-manager, as in any cluster, and the API server refuses pods until it is there:
`create_namespace` waits for it.
"""

import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.cluster import audit, binaries, flags
from tests.cluster.processes import Component, free_ports, run_folder
from tests.waiting import wait_for

START_SECONDS = 200  # s; 4 s alone on 2 cores
ADMIN = "admin"


class ApiError(Exception):
    """The API server refused a request: `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class ApiServer:
    """The control plane as a context manager: entering starts it, leaving removes all of it."""

    def __init__(
        self,
        *,
        scheduler: bool = True,
        controller_manager: bool = True,
        extra_arguments: Mapping[str, Sequence[str]] | None = None,
        programs: Mapping[str, Path] | None = None,
    ) -> None:
        """`extra_arguments`: further flags by component (`kube-apiserver`); the last one wins.

        `programs`: those of another release, by name.
        """
        self._programs = {**binaries.control_plane(), **(programs or {})}
        optional = {"kube-controller-manager": controller_manager, "kube-scheduler": scheduler}
        self._wanted = ["etcd", "kube-apiserver", *(name for name in optional if optional[name])]
        self._extra = extra_arguments or {}
        self.token = secrets.token_hex(16)

    def __enter__(self) -> Self:
        self.folder, self._guardian = run_folder()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove the data; nothing is worth a polite end."""
        for component in reversed(getattr(self, "components", {}).values()):
            component.kill()
        self._guardian.close()

    def _start(self) -> None:
        etcd, peers, port = free_ports(3)
        self.url = f"https://127.0.0.1:{port}"
        self.ca_file = (
            self.folder / "pki" / "apiserver.crt"
        )  # the certificate it makes for itself, with its CA
        self.kubeconfig = self.folder / "kubeconfig"
        (self.folder / "service-accounts.key").write_text(flags.private_key())
        (self.folder / "tokens.csv").write_text(f'{self.token},{ADMIN},{ADMIN},"system:masters"\n')
        audit.write_policy(self.folder / "audit-policy.json")
        arguments = flags.arguments(self.folder, etcd_ports=(etcd, peers), port=port)
        self.components = {
            name: Component(
                self._programs[name],
                [*arguments[name], *self._extra.get(name, ())],
                log=self.folder / f"{name}.log",
            )
            for name in self._wanted
        }
        self.audit = audit.AuditLog(
            self.folder / "audit.log", make_request=lambda path: self.request("GET", path)
        )
        self.components["etcd"].start()
        self.start_apiserver()
        self.write_kubeconfig(self.kubeconfig, token=self.token)
        for name in self._wanted[2:]:
            self.components[name].start()
        if "kube-controller-manager" in self.components:
            self.components["kube-controller-manager"].wait_until(
                lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"),
                timeout_seconds=START_SECONDS,
            )

    def start_apiserver(self) -> None:
        """Start the API server, at its old address if it ran before, and wait until it is ready."""
        server = self.components["kube-apiserver"]
        server.start()
        server.wait_until(self._is_ready, timeout_seconds=START_SECONDS)

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again: watches break, nothing stored is lost."""
        self.components["kube-apiserver"].kill()
        self.start_apiserver()

    def _is_ready(self) -> bool:
        with suppress(OSError, ApiError):  # not yet listening, no certificate yet, not yet ready
            self.request("GET", "/readyz")
            return True
        return False

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        token: str = "",
        kind: str = "json",
    ) -> Any:
        """One request, by the administrator if no token is given; the decoded answer.

        `kind` is the body's media type after `application/`, such as `merge-patch+json`.
        Raises ApiError.
        """
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"Bearer {token or self.token}")
        request.add_header("Content-Type", f"application/{kind}")
        content = None if body is None else json.dumps(body).encode()
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            with urllib.request.urlopen(request, content, timeout=200, context=context) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text.startswith(("{", "[")) else text

    def exists(self, path: str) -> bool:
        """Whether a GET of this path finds something."""
        try:
            self.request("GET", path)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
    ) -> str:
        """What `kubectl` prints; with `check=False` its complaints too.

        Raises AssertionError with the complaint where it fails.
        """
        command = [
            str(self._programs["kubectl"]),
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            *arguments,
        ]
        ended = subprocess.run(command, input=input, capture_output=True, text=True, timeout=200)
        if check and ended.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {ended.stderr.strip()}")
        return ended.stdout if check else ended.stdout + ended.stderr

    def write_kubeconfig(
        self, path: Path, *, token: str, namespace: str = "default", url: str = ""
    ) -> Path:
        """Write a kubeconfig for the owner of a token; the path. `url`: of a proxy before it."""
        authority = b64encode(self.ca_file.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": url or self.url, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "tests",
                    "context": {"cluster": "tests", "user": "tests", "namespace": namespace},
                }
            ],
            "current-context": "tests",
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token, good for 10 hours, of a service account that is created if need be.

        It has the rights of the RBAC objects that bind it, and none besides: the way to try a role.
        """
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.exists(f"{accounts}/{name}"):
            self.request("POST", accounts, {"metadata": {"name": name}})
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        spec = {"expirationSeconds": 36000}
        answer = self.request("POST", f"{accounts}/{name}/token", {**wish, "spec": spec})
        return str(answer["status"]["token"])

    def create_namespace(self, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace and wait until pods can be created in it."""
        self.request(
            "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}}
        )
        if "kube-controller-manager" in self.components:
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            wait_for(lambda: self.exists(account), lambda: f"service account of namespace {name}")

    def install_crd(self, *paths: Path) -> None:
        """Apply CustomResourceDefinitions and wait until clients find and explain their kinds."""
        for path in paths:
            applied = json.loads(
                self.kubectl("apply", "--server-side", "-f", str(path), "-o", "json")
            )
            for crd in applied["items"] if applied["kind"] == "List" else [applied]:
                group = crd["spec"]["group"]
                for version in (v["name"] for v in crd["spec"]["versions"] if v["served"]):
                    self._wait_for_kind(f"apis/{group}/{version}", crd["spec"]["names"])

    def _wait_for_kind(self, path: str, names: Mapping[str, Any]) -> None:
        def is_known() -> bool:
            """Listed, explained and served: three parts of the server, each in its own time."""
            if not self.exists(f"/{path}"):
                return False
            kinds = {found["name"] for found in self.request("GET", f"/{path}")["resources"]}
            explained = self.request("GET", "/openapi/v3")["paths"]
            return names["plural"] in kinds and path in explained and self._is_served(path, names)

        wait_for(is_known, lambda: f"{names['kind']} in discovery")

    def _is_served(self, path: str, names: Mapping[str, Any]) -> bool:
        try:
            return self.exists(f"/{path}/{names['plural']}")
        except ApiError as error:
            if error.code != 429:  # "storage is (re)initializing"
                raise
            return False
