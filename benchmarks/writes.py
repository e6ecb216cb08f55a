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


@dataclass(frozen=True)
class Write:
    """A write that was answered well."""

    time: float
    """Unix time of the answer."""
    verb: str
    resource: str
    namespace: str
    name: str

    def is_of(self, verb: str, resource: str) -> bool:
        """Whether it is such a write."""
        return (self.verb, self.resource) == (verb, resource)


@dataclass
class Writes:
    """The writes so far; `read` takes in what the log has got since it was last called."""

    path: Path
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(verb, resource) → how many were answered well."""
    refused: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(verb, resource, code) → how many were not."""
    log: list[Write] = field(default_factory=list)
    """The former, one by one, in the order of the log."""
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
        time = datetime.fromisoformat(str(event["stageTimestamp"])).timestamp()
        named = (str(target.get(name, "")) for name in ("namespace", "name"))
        self.log.append(Write(time, verb, resource, *named))

    @property
    def pods_created(self) -> list[float]:
        """Unix times of the answers to pod creations."""
        return [write.time for write in self.log if write.is_of("create", "pods")]

    def between(self, since: float, until: float) -> list[Write]:
        """Writes by the time of their answers, Events left out."""
        return [w for w in self.log if since <= w.time < until and w.resource != "events"]

    @property
    def creation_seconds(self) -> float:
        """From the first pod created to the last."""
        return max(self.pods_created) - min(self.pods_created)
