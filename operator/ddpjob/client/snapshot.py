"""A DDPJob as it was read."""

import time
from collections.abc import Container, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ddpjob import names, why
from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.connection import Connection
from ddpjob.errors import JobFailed, JobRefused, NotFound
from ddpjob.json_depth import Body
from ddpjob.times import unix_seconds

if TYPE_CHECKING:
    from ddpjob import api


class Snapshot:
    """A job as it was read. `body` is the object as it is stored.

    What the status says may be anybody's text: it is printable here, but in `body`.
    """

    def __init__(self, body: Body) -> None:
        # For Kubernetes alone, and perhaps half of the object.
        body.get("metadata", {}).pop("managedFields", None)
        self.body = body

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.name} {self.state}>"

    @property
    def name(self) -> str:
        """Return the job's name."""
        return why.text(self.body, "metadata", "name", limit=253)

    @property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return why.text(self.body, "metadata", "namespace", limit=253)

    @property
    def uid(self) -> str:
        """Return the job's uid. Another job of the same name has another one."""
        return why.text(self.body, "metadata", "uid")

    @property
    def user(self) -> str:
        """Return the name of whoever has made the job with the client. Anybody may change it."""
        return why.text(self.body, "metadata", "annotations", names.USER_ANNOTATION)

    @property
    def created(self) -> float | None:
        """Return the time of creation in Unix seconds."""
        return unix_seconds(why.text(self.body, "metadata", "creationTimestamp"))

    @property
    def state(self) -> str:
        """Return Pending, Starting, Running, Restarting, Idle, Suspended, Succeeded or Failed."""
        return why.state(self.body.get("status"))

    @property
    def is_finished(self) -> bool:
        """Return whether the job has succeeded or failed."""
        return self.state in why.FINISHED

    @property
    def has_ended(self) -> bool:
        """Return whether the job is finished, or Idle: its ranks have ended, and its pods are kept.

        An Idle job has not ended if an edit is to run in these pods, or cannot.
        """
        seen = why.number(self.body, "status", "observedGeneration") or 0
        is_seen = seen >= (why.number(self.body, "metadata", "generation") or 0)
        return self.is_finished or self.state == "Idle" and is_seen and not self.refusal

    @property
    def has_failed(self) -> bool:
        """Return whether the job has failed, or is Idle because its ranks have."""
        if self.state != "Idle":
            return self.state == "Failed"
        return self.has_ended and why.has_failed(self.body.get("status"))

    @property
    def reason(self) -> str:
        """Return why the job is not simply running, in one line; empty while all is well."""
        return why.reason(self.body.get("status"))

    @property
    def message(self) -> str:
        """Return the operator's words about the state."""
        return why.message(self.body.get("status"))

    @property
    def attempt(self) -> int:
        """Return the number of the current attempt, from 0."""
        return why.number(self.body, "status", "attempt") or 0

    @property
    def round(self) -> int:
        """Return the number of the current round of the attempt, from 0."""
        return why.number(self.body, "status", "round") or 0

    @property
    def revision(self) -> int:
        """Return how often what the ranks run has been edited, from 1."""
        return why.number(self.body, "status", "program", "revision") or 1

    @property
    def refusal(self) -> str:
        """Return why the job gets no pods until somebody changes something, or an empty text."""
        return why.refusal(self.body.get("status"))

    @property
    def gpus_per_node(self) -> int:
        """Return the GPUs in the limits of each pod."""
        limits = why.part(self.body, "spec", "resources", "limits") or {}
        counts = [str(count) for name, count in limits.items() if names.is_gpu(name)]
        return sum(int(count) for count in counts if count.isdecimal())

    @property
    def nnodes(self) -> int:
        """Return the number of nodes of the group now; before it starts, as the spec says."""
        desired = why.number(self.body, "status", "nodes", "desired")
        return max(1, desired or why.number(self.body, "spec", "nnodes") or 1)

    @property
    def most_nodes(self) -> int:
        """Return the number of nodes that it may have had in one of the attempt's rounds."""
        is_elastic = why.part(self.body, "spec", "elastic") is not None
        return max(self.nnodes, is_elastic and why.number(self.body, "spec", "nnodes") or 1)

    @property
    def spares(self) -> int | None:
        """Return the number of pods that wait for a rank; None of a job that has none."""
        return why.number(self.body, "status", "nodes", "spares")

    @property
    def processes_per_node(self) -> int:
        """Return the number of ranks in each pod: as the job has started, else as the spec says."""
        if world := why.number(self.body, "status", "worldSize"):
            return max(1, world // self.nnodes)
        asked = why.number(self.body, "spec", "nprocPerNode")
        return max(1, self.gpus_per_node if asked is None else asked)

    @property
    def step(self) -> int | None:
        """Return the last step of the current round that the job has reported, or None."""
        progress = why.part(self.body, "status", "progress")
        current = (self.attempt, self.round)
        found = (why.number(progress, "attempt") or 0, why.number(progress, "round") or 0)
        return why.number(progress, "step") if found == current else None

    @property
    def spec(self) -> "api.Spec":
        """Return the job's spec, with all defaults. Raises InvalidJob."""
        from ddpjob import api  # its models take as long to import as a request takes

        return api.DDPJob.parse(self.body, is_stored=True).spec

    @property
    def status(self) -> "api.Status":
        """Return the parts of the job's status that break no rule."""
        from ddpjob import api

        return api.read_status(self.body.get("status") or {})

    @property
    def progress(self) -> "api.Progress | None":
        """Return the last report of rank 0, or None."""
        return self.status.progress

    @property
    def failure(self) -> "api.Failure | None":
        """Return the primary failure of the last attempt that failed, or None."""
        return self.status.failure

    @property
    def attempts(self) -> "list[api.Attempt]":
        """Return the last ten attempts, or rounds of attempts, that are over, oldest first."""
        return list(self.status.history)

    def is_at(self, wanted: int | None) -> bool:
        """Return whether the job has ended, or has reported this step (see `parse_until`)."""
        if self.has_ended or wanted is None:
            return self.has_ended
        return self.state == "Running" and (self.step or 0) >= wanted

    def raise_if_failed(self) -> None:
        """Raise JobFailed, with the primary failure, if the job has failed."""
        if not self.has_failed:
            return
        status = self.body["status"]
        kind = "Failed" if self.is_finished else "Running"
        failure = status.get("failure", {})
        texts = ("node", "signal", "exception")
        error = JobFailed(
            self.name,
            why.text(why.condition(status, kind), "reason") or "Failed",
            rank=why.place(status, failure, self.processes_per_node)[0],
            exit_code=failure.get("exitCode"),
            **{name: failure.get(name) for name in texts},
            message=failure.get("message", ""),
            traceback=failure.get("traceback", ""),
        )
        error.job = self
        raise error

    def to_record(self) -> dict[str, Any]:
        """Return the job in short, as the commands print it with `-o json`."""
        return {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "state": self.state,
            "reason": self.reason,
            "attempt": self.attempt,
            "round": self.round,
            "restarts": why.number(self.body, "status", "restarts") or 0,
            "step": self.step,
        }

    def curve(self) -> list[tuple[float, ...]]:
        """Return the points `(step, loss)` or `(step, loss, samples per second)` of the status."""
        return [tuple(point) for point in why.part(self.body, "status", "curve") or ()]


def watch_jobs(
    connection: Connection,
    jobs: Sequence[Snapshot],
    *,
    deadline: float | None,
    refused_after: float | None = None,
    left: Container[str] | None = None,
) -> Generator[Body, None, None]:
    """Yield these jobs, which are of one namespace, as they change, until `deadline`, if any.

    Raises NotFound if one is deleted whose uid is `left`, by default each of them, and JobRefused
    once one of them has been refused for `refused_after` seconds, if any.
    """
    latest = {job.uid: job for job in jobs}
    refused = dict[str, float]()  # when each was first seen to be refused

    def keep(body: Body) -> Body | None:
        return body if body["metadata"]["uid"] in latest else None

    while latest:
        now = time.monotonic()
        refused = {uid: refused.get(uid, now) for uid, job in latest.items() if job.refusal}
        ends = [] if deadline is None else [deadline]
        if refused_after is not None:
            ends += [since + refused_after for since in refused.values()]
        watch = connection.watch(
            DDPJOBS,
            namespace=next(iter(latest.values())).namespace,
            keep=keep,
            known=[job.body for job in latest.values()],
            deadline=min(ends, default=None),
        )
        with closing(watch):  # an error would keep its connection open as long as itself
            for event in watch:
                job = Snapshot(event.object)
                if event.type != "DELETED":
                    latest[job.uid] = job
                    yield event.object
                elif left is None or job.uid in left:
                    raise NotFound(404, "NotFound", f"{job.name} was deleted")
                else:
                    latest.pop(job.uid, None)
                if not latest or bool(job.refusal) != (job.uid in refused):
                    break
            else:
                for uid, since in refused.items():
                    if refused_after is not None and time.monotonic() >= since + refused_after:
                        raise JobRefused(latest[uid])
                return


@dataclass(frozen=True)
class Event:
    """What Kubernetes has noted of a job, once or several times. All texts are printable."""

    time: str | None
    """When it happened last, in RFC 3339."""
    type: str
    """Normal or Warning."""
    reason: str
    """What has happened, in one word, such as FirstStep."""
    message: str
    """The same in a sentence."""
    count: int
    """How often it has happened."""

    def to_record(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return asdict(self)


def read_event(body: Body) -> Event:
    """Return the event that an object of Kubernetes describes."""
    return Event(
        time=body.get("lastTimestamp") or body.get("eventTime"),
        type=why.text(body, "type", limit=32),
        reason=why.text(body, "reason", limit=128),
        message=why.text(body, "message", limit=1024),  # as the API server bounds it
        count=why.number(body, "count") or 1,
    )
