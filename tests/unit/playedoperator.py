"""An API server with one job, and the operator's own decisions about it, one at each event."""

import hashlib
from collections.abc import Iterator
from typing import Any

from ddpjob.api import DDPJob, Program
from ddpjob.cluster import DDPJOBS, WatchEvent
from ddpjob.cluster.connection import MERGE
from ddpjob.errors import cluster_error
from ddpjob.plan.model import NodeExit, RoundStatus
from tests.builders import running, summary, whole, with_status, write
from tests.unit.playedserver import Played

BOTH = (running(0), running(1))


def hash_of(job: DDPJob) -> str:
    """What stands for the program of the job's ranks."""
    spec = job.spec
    found = repr((spec.args, spec.env, spec.code and spec.code.sha256))
    return hashlib.sha256(found.encode()).hexdigest()[:16]


class PlayedOperator(Played):
    """`turns` are what it observes when the job is watched: a turn is a decision."""

    def __init__(self, *turns: dict[str, Any], **spec: Any) -> None:
        code = {"configMaps": ["first"], "sha256": "f" * 64}
        ours = whole(args=["train.py"], code=code, **{"keepSeconds": 1800, **spec})
        program = Program(revision=1, hash=hash_of(ours))
        ours = with_status(ours, ours.status.model_copy(update={"program": program}))
        super().__init__(ours.model_dump(by_alias=True, mode="json", exclude_none=True))
        self.path = DDPJOBS.path("team", ours.name)
        self.turns = list(turns)
        self.play()

    @property
    def job(self) -> dict[str, Any]:
        """The job as it is stored."""
        return self.stored[self.path]

    def play(self) -> None:
        """Take all turns."""
        while self.turns:
            self.take(self.turns.pop(0))

    def take(self, turn: dict[str, Any]) -> None:
        """Store the status of one decision. With `edit`, somebody changes the spec before it."""
        if edit := turn.pop("edit", None):
            self.request("PATCH", self.path, {"spec": edit}, content_type=MERGE)
        ours = DDPJob.parse(self.job)
        pods = turn.pop("pods", BOTH)
        status = write(ours, *pods, **{"program": hash_of(ours), **turn}).status
        version = str(int(self.job["metadata"]["resourceVersion"]) + 1)
        metadata = {**self.job["metadata"], "resourceVersion": version}
        self.stored[self.path] = {**self.job, "metadata": metadata, "status": status.to_json()}

    def watch(  # type: ignore[override]
        self, *_: Any, deadline: float | None = None, **__: Any
    ) -> Iterator[WatchEvent]:
        while self.turns:
            self.take(self.turns.pop(0))
            yield WatchEvent("MODIFIED", self.request("GET", self.path))
        assert deadline is not None, "nothing else happens"

    def request(self, verb: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        if verb == "PATCH" and path == self.path and path in self.stored:
            known = self.job["metadata"]["resourceVersion"]
            if body.get("metadata", {}).get("resourceVersion", known) != known:
                raise cluster_error(409, "Conflict", "it has been modified")
        return super().request(verb, path, body, **more)


def done(value: Any, round: int = 0) -> dict[str, Any]:
    """A turn at which all ranks of a round have ended well, and rank 0 has left a value."""
    left = summary(reason="Completed", exit_code=0, round=round, result={"value": value, "size": 9})
    other = summary(reason="Completed", exit_code=0, round=round)
    exits = (NodeExit(0, 0, left), NodeExit(1, 0, other))
    return {"round_status": RoundStatus(0, round, running=True, exits=exits, over=True)}


def broken(round: int = 0, **fields: Any) -> dict[str, Any]:
    """A turn at which rank 1 has failed."""
    exits = (NodeExit(1, 1, summary(rank=1, exit_code=1, round=round, **fields)),)
    return {"round_status": RoundStatus(0, round, running=True, exits=exits)}


def runs(round: int, **fields: Any) -> dict[str, Any]:
    """A turn at which the ranks of a round run."""
    return {"round_status": RoundStatus(0, round, running=True), **fields}
