"""What the measured client wrote, and when, from the API server's audit log.

The tests' policy logs bodies, which slows the server down; this one logs names and times of the
measured user's writes and nothing else, at the same cost for both sides.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import orjson


def policy(user: str) -> dict[str, object]:
    """Audit policy: the writes of `user`, without bodies."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {
                "level": "Metadata",
                "users": [user],
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            },
            {"level": "None"},
        ],
    }


def write_policy(path: Path, user: str) -> None:
    """Write the policy as JSON, which the API server reads too."""
    path.write_text(json.dumps(policy(user)))


@dataclass
class Writes:
    """The writes so far; `read` takes in what the log has got since it was last called."""

    path: Path
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(verb, resource) → how many were answered well."""
    refused: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(verb, resource, code) → how many were not."""
    pods_created: list[float] = field(default_factory=list)
    """Unix times of the answers to pod creations."""
    _read_to: int = 0

    def read(self) -> int:
        """Take in what is new; the number of writes in all."""
        if self.path.exists():
            with self.path.open("rb") as log:
                log.seek(self._read_to)
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    self._read_to += len(line)
                    self._take(orjson.loads(line))
        return sum(self.counts.values()) + sum(self.refused.values())

    def _take(self, event: dict[str, object]) -> None:
        target, answer = event["objectRef"], event["responseStatus"]
        assert isinstance(target, dict) and isinstance(answer, dict)
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        verb, code = str(event["verb"]), int(answer["code"])
        if code >= 300:
            self.refused[verb, resource, code] += 1
            return
        self.counts[verb, resource] += 1
        if (verb, resource) == ("create", "pods"):
            time = datetime.fromisoformat(str(event["stageTimestamp"]))
            self.pods_created.append(time.timestamp())

    @property
    def creation_seconds(self) -> float:
        """From the first pod created to the last."""
        return max(self.pods_created) - min(self.pods_created)
