"""The API server's audit log: who asked for what, in what order, and what it changed."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddpjob.json_depth import read_json

# Writes on what the operator handles are logged with both bodies, everything else without: reads
# of many objects would fill the memory for nothing.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {
            "level": "RequestResponse",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [
                {"group": "ddpjob.dev"},
                {
                    "group": "",
                    "resources": [
                        f"{kind}{sub}" for kind in ("pods", "services") for sub in ("", "/*")
                    ],
                },
                {"group": "", "resources": ["configmaps"]},
                {"group": "networking.k8s.io", "resources": ["networkpolicies"]},
            ],
        },
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi*"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Entry:
    """One request. `raw` is the event as logged."""

    raw: dict[str, Any]

    @property
    def user(self) -> str:
        """Name of who asked, `system:serviceaccount:NAMESPACE:NAME` for a service account."""
        return str(self.raw["user"]["username"])

    @property
    def credential(self) -> str:
        """`JTI=…` of a service account's token, which tells processes of one account apart."""
        extra = self.raw["user"].get("extra", {})
        return str(extra.get("authentication.kubernetes.io/credential-id", [""])[0])

    @property
    def verb(self) -> str:
        return str(self.raw["verb"])

    @property
    def resource(self) -> str:
        """Plural and subresource: `pods`, `pods/status`; empty for other URLs."""
        found = self.raw.get("objectRef", {})
        return "/".join(part for part in (found.get("resource"), found.get("subresource")) if part)

    @property
    def namespace(self) -> str:
        return str(self.raw.get("objectRef", {}).get("namespace", ""))

    @property
    def name(self) -> str:
        """The object's name, empty for lists and for creations by generateName."""
        return str(
            self.raw.get("objectRef", {}).get("name")
            or self.request.get("metadata", {}).get("name", "")
        )

    @property
    def code(self) -> int:
        """HTTP status of the answer, 0 if there was none (a panic, a connection cut)."""
        return int(self.raw.get("responseStatus", {}).get("code", 0))

    @property
    def writes(self) -> bool:
        """Whether this was a request to change something."""
        return self.verb in ("create", "update", "patch", "delete", "deletecollection")

    @cached_property
    def request(self) -> dict[str, Any]:
        """What was sent, empty where it was not logged."""
        sent = self.raw.get("requestObject")
        return sent if isinstance(sent, dict) else {}

    @cached_property
    def response(self) -> dict[str, Any]:
        """What was answered, empty where it was not logged."""
        return self.raw.get("responseObject") or {}


class AuditLog:
    """Reads the log while it grows. Entries come in the order in which requests were completed."""

    def __init__(self, path: Path, *, make_request: Callable[[str], object]) -> None:
        self._path = path
        self._make_request = make_request

    def mark(self) -> int:
        """This place in the log: what was answered before lies before it."""
        marker = f"/version?audit-mark={time.monotonic_ns()}"
        start = self._path.stat().st_size if self._path.exists() else 0
        self._make_request(marker)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            for end, line in self._lines(start):
                if marker.encode() in line:
                    return end
            time.sleep(0.01)
        raise TimeoutError(f"the audit log shows no {marker} after 30 s")

    def entries(self, since: int = 0) -> Iterator[Entry]:
        """Requests answered since a mark and until now, the reader's own marks left out."""
        until = self.mark()
        for end, line in self._lines(since):
            if end > until:
                return
            entry = Entry(read_json(line))
            if (
                "audit-mark=" not in entry.raw["requestURI"]
                and entry.raw["stage"] != "ResponseStarted"
            ):
                yield entry

    def writes(self, since: int = 0, *, user: str = "", namespace: str = "") -> list[Entry]:
        """Requests to change something, by one user or in one namespace if asked for."""
        return [
            entry
            for entry in self.entries(since)
            if entry.writes and user in ("", entry.user) and namespace in ("", entry.namespace)
        ]

    def _lines(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines from a place on, each with the place after it."""
        with self._path.open("rb") as log:
            log.seek(start)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield start, line


def write_policy(path: Path) -> None:
    """Write the audit policy, which the API server reads as JSON too."""
    path.write_text(json.dumps(POLICY))
