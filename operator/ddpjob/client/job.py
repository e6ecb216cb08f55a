"""A DDPJob as it was read, and the verbs on it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import MERGE, Connection
from ddpjob.cluster import DDPJOBS, EVENTS
from ddpjob.errors import Conflict, JobFailed, JobTimeout, NotFound, Refused
from ddpjob.json_depth import Body
from ddpjob.times import unix_seconds

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.logs import LogLine

# Between two looks at the pods that are left of a deleted job.
POLL_SECONDS = 1.0
# Names that a rerun tries.
MAX_RERUNS = 100


class Job:
    """A snapshot of a job, and verbs. Verbs that return a Job bring this one up to date first.

    What the status says may be anybody's text: it is printable here, but in `body`.
    """

    def __init__(self, connection: Connection, body: Body) -> None:
        self._connection, self.body = connection, _slim(body)

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name} {self.state}>"

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
        """Return Pending, Starting, Running, Restarting, Suspended, Succeeded or Failed."""
        return why.state(self.body.get("status"))

    @property
    def is_finished(self) -> bool:
        """Return whether the job has succeeded or failed."""
        return self.state in why.FINISHED

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
    def step(self) -> int | None:
        """Return the last step of the current round that the job has reported, or None."""
        progress = why.part(self.body, "status", "progress")
        current = (self.attempt, why.number(self.body, "status", "round") or 0)
        found = (why.number(progress, "attempt") or 0, why.number(progress, "round") or 0)
        return why.number(progress, "step") if found == current else None

    @property
    def spec(self) -> "api.Spec":
        """Return the job's spec, with all defaults. Raises InvalidJob."""
        from ddpjob import api  # its models take as long to import as a request takes

        return api.DDPJob.parse(self.body).spec

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

    def refresh(self) -> "Job":
        """Read the job again. Raises NotFound if it, or this job of the name, is gone."""
        return self._take(self._connection.get(DDPJOBS, self.name, namespace=self.namespace))

    def wait(
        self, until: str = "finished", *, timeout: float | None = None, check: bool = True
    ) -> "Job":
        """Return the job once it is `finished`, `running`, or at `step=N` at least.

        A finished job is never waited for. With `check`, a failed one raises JobFailed. Raises
        JobTimeout after `timeout` seconds, NotFound if the job is deleted, and ValueError for
        another `until`. The job runs on in all of these cases.
        """
        wanted = parse_until(until)
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in self._changes(deadline):
            if job.is_finished or wanted is not None and job._is_at(wanted):
                if check:
                    job.raise_if_failed()
                return job
        raise JobTimeout(self, f"{self.name} is {self.state} after {timeout:g} s, not {until}")

    def until(self, holds: Callable[["Job"], bool], *, timeout: float | None = None) -> "Job":
        """Return the job once something holds of it.

        Raises JobTimeout after `timeout` seconds, and NotFound if the job is deleted.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in self._changes(deadline):
            if holds(job):
                return job
        raise JobTimeout(self, f"{self.name} is {self.state} after {timeout:g} s")

    def watch(self) -> Iterator["Job"]:
        """Yield a snapshot now and at each change, until the job is finished.

        Raises NotFound if it is deleted.
        """
        for job in self._changes(None):
            yield Job(self._connection, job.body)
            if job.is_finished:
                return

    def logs(
        self,
        *,
        rank: int | str | None = None,
        attempt: int | str = "current",
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> Iterator["LogLine"]:
        """Yield lines of the ranks' logs: of rank 0, or of `rank`, such as `3` or `0,8-11`.

        `attempt` is a number, `current` or `all`. With `follow` it goes on over restarts until the
        job is finished. `since` is in seconds before now, `tail` in lines of each rank.
        """
        raise NotImplementedError

    def events(self) -> list[Body]:
        """Return the Kubernetes events about the job and its pods, oldest first."""
        selector = f"involvedObject.kind={names.KIND},involvedObject.name={self.name}"
        found = self._connection.list(EVENTS, namespace=self.namespace, fields=selector).items
        return [event for event in found if why.text(event, "involvedObject", "uid") == self.uid]

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks that answer, by global rank.

        Raises Forbidden without the right to `pods/portforward`, or another ClusterError.
        """
        from ddpjob.client import agents

        answers = agents.ask(self._connection, self.body, "/stacks")
        return agents.read_stacks(answers, self.processes_per_node)

    def curve(self) -> list[tuple[float, ...]]:
        """Return the points `(step, loss)` or `(step, loss, samples per second)` of the status."""
        found = why.part(self.body, "status", "curve")
        points = [point for point in found if isinstance(point, list)] if found else []
        return [tuple(point) for point in points if all(type(x) in (int, float) for x in point)]

    def suspend(self) -> "Job":
        """End the pods, and keep the job. Its ranks have their grace period to save."""
        return self.patch({"spec": {"suspend": True}})

    def resume(self) -> "Job":
        """Start the suspended job again, with a new attempt."""
        return self.patch({"spec": {"suspend": False}})

    def rerun(self, *, name: str | None = None, **set: Any) -> "Job":
        """Create a new job of the same spec and code, with fields of `set` changed, and return it.

        `set` is merged into the spec: `nnodes=4`, `failurePolicy={"maxRestarts": 0}`; None removes
        a field. By default the name is this one's with -2, or the next number that is free. Raises
        InvalidJob if its code does not exist any more, Forbidden or another ClusterError.
        """
        from ddpjob.client import edits

        self.refresh()
        return self.rerun_with(edits.merged(self.body["spec"], set), name=name)

    def rerun_with(self, spec: Mapping[str, Any], *, name: str | None = None) -> "Job":
        """Create a new job like this one, with another spec; see `rerun`."""
        from ddpjob.client import creation, edits
        from ddpjob.errors import AlreadyExists

        body = edits.rerun(self.body, spec)
        annotations = {**body["metadata"]["annotations"]}
        annotations[names.USER_ANNOTATION] = self._connection.user
        first = edits.origin(self.body)
        numbers = range(2, MAX_RERUNS + 2)
        for taken in [name] if name else [edits.rerun_name(first, n) for n in numbers]:
            metadata = {**body["metadata"], "name": taken, "annotations": annotations}
            try:
                made = creation.create(self._connection, {**body, "metadata": metadata})
            except AlreadyExists:
                if name:
                    raise
            else:
                return Job(self._connection, made)
        raise Conflict(409, "Conflict", f"{first} has {MAX_RERUNS} reruns; name the new one")

    def delete(self) -> None:
        """Delete the job, and with it all that it owns."""
        body = {"preconditions": {"uid": self.uid}, "propagationPolicy": "Background"}
        path = DDPJOBS.path(self.namespace, self.name)
        self._connection.request("DELETE", path, body)

    def wait_until_gone(self) -> None:
        """Return once neither the job nor a pod of it exists any more."""
        from ddpjob.cluster import PODS

        with suppress(NotFound):
            self.until(lambda job: False)
        labels = f"{names.JOB_UID_LABEL}={self.uid}"
        while self._connection.list(PODS, namespace=self.namespace, labels=labels).items:
            time.sleep(POLL_SECONDS)

    def patch(self, changes: Mapping[str, Any]) -> "Job":
        """Change the job by a JSON merge patch, and return it. Raises Conflict for another uid."""
        metadata = {**changes.get("metadata", {}), "uid": self.uid}
        path = DDPJOBS.path(self.namespace, self.name)
        body = {**changes, "metadata": metadata}
        try:
            return self._take(self._connection.request("PATCH", path, body, content_type=MERGE))
        except Refused as error:
            if error.code == 422 and "metadata.uid" in error.message:
                text = f"{self.name} was deleted; another job has its name"
                raise Conflict(409, "Conflict", text) from None
            raise

    def raise_if_failed(self) -> None:
        """Raise JobFailed, with the primary failure, if the job has failed."""
        if self.state != "Failed":
            return
        failure = part if isinstance(part := why.part(self.body, "status", "failure"), dict) else {}
        texts = ("node", "signal", "exception")
        raise JobFailed(
            self.name,
            why.text(why.condition(self.body.get("status"), "Failed"), "reason") or "Failed",
            rank=why.number(failure, "rank"),
            exit_code=why.number(failure, "exitCode"),
            **{name: why.text(failure, name) or None for name in texts},
            message=str(failure.get("message") or ""),
            traceback=str(failure.get("traceback") or ""),
        )

    def _take(self, body: Body) -> "Job":
        if self.uid and why.text(body, "metadata", "uid") != self.uid:
            raise NotFound(404, "NotFound", f"{self.name} was deleted; another job has its name")
        self.body = _slim(body)
        return self

    def _changes(self, deadline: float | None) -> Iterator["Job"]:
        """Yield this job now and after each change, until `deadline`. Raises NotFound."""
        yield self.refresh()
        watch = self._connection.watch(
            DDPJOBS, namespace=self.namespace, after=self.body, deadline=deadline
        )
        for event in watch:
            if event.type == "DELETED":
                raise NotFound(404, "NotFound", f"{self.name} was deleted")
            yield self._take(event.object)

    def _is_at(self, step: int) -> bool:
        """Return whether the job runs, and has reported this step."""
        return self.state == "Running" and (step <= 0 or (self.step or 0) >= step)


def parse_until(text: str) -> int | None:
    """Return the step that `until` stands for: None is `finished`, 0 is `running`.

    Raises ValueError.
    """
    named = {"finished": None, "running": 0}
    if text in named:
        return named[text]
    kind, _, digits = text.partition("=")
    if kind == "step" and digits.isascii() and digits.isdigit() and len(digits) < 17:
        return int(digits)
    raise ValueError(f"must be finished, running or step=N, got {text!r}")


def _slim(body: Body) -> Body:
    """Return the object without what Kubernetes alone needs, which may be half of it."""
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return body
