"""Finds the API server's address and the credentials for it.

They come from the pod's service account, or from a kubeconfig file.
"""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddpjob.errors import DDPJobError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCredentials(DDPJobError):
    """There is neither a service account nor a usable kubeconfig."""


@dataclass(frozen=True)
class Credentials:
    """The address and the secrets that open connections. No part of them is ever logged."""

    server: str
    """URL, such as `https://10.0.0.1:443`."""
    ca_file: str | None = None
    ca_data: str | None = None
    """PEM."""
    token: str | None = None
    token_file: Path | None = None
    """Read again now and then: bound tokens rotate."""
    certificate: bytes | None = None
    """Client certificate and its key, PEM, one after the other."""
    insecure: bool = False

    @classmethod
    def find(cls) -> "Credentials":
        """Return the credentials of the pod's service account, $KUBECONFIG or ~/.kube/config.

        Raises NoCredentials.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if (SERVICE_ACCOUNT / "token").exists() and host:
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            return cls(
                server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
                ca_file=str(SERVICE_ACCOUNT / "ca.crt"),
                token_file=SERVICE_ACCOUNT / "token",
            )
        path = Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
        if not path.exists():
            raise NoCredentials(f"no service account in {SERVICE_ACCOUNT}, no kubeconfig at {path}")
        return cls.from_kubeconfig(path)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Credentials":
        """Return the credentials of a kubeconfig's current context: a token or a certificate.

        Raises NoCredentials for a context with an exec plugin or without credentials. The CLI and
        the SDK can use an exec plugin, but the operator's client cannot.
        """
        config = yaml.safe_load(path.read_text())
        context = _named(config, "context", config.get("current-context"), path)
        cluster = _named(config, "cluster", context["cluster"], path)
        user = _named(config, "user", context["user"], path)
        certificate = _pem(user, "client-certificate") + _pem(user, "client-key")
        if "exec" in user or not (user.get("token") or certificate):
            raise NoCredentials(f"{path}: user {context['user']!r} has no token and no certificate")
        ca = _pem(cluster, "certificate-authority")
        return cls(
            server=cluster["server"],
            ca_data=ca.decode() or None,
            token=user.get("token"),
            certificate=certificate or None,
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
        )

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Return the context for aiohttp, or False if the server speaks plain http."""
        if not self.server.startswith("https"):
            return False
        context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads keys from files only
                file.write(self.certificate)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def current_token(self) -> str | None:
        """Return the bearer token as it is now."""
        return self.token_file.read_text().strip() if self.token_file else self.token


def _named(config: Mapping[str, Any], kind: str, name: str | None, path: Path) -> dict[str, Any]:
    for entry in config.get(f"{kind}s") or []:
        if entry["name"] == name:
            found: dict[str, Any] = entry[kind]
            return found
    raise NoCredentials(f"{path}: no {kind} named {name!r}")


def _pem(part: Mapping[str, Any], name: str) -> bytes:
    if data := part.get(f"{name}-data"):
        return base64.b64decode(data) + b"\n"
    return Path(part[name]).read_bytes() + b"\n" if part.get(name) else b""
