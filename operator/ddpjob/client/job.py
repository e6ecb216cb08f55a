"""A DDPJob, and the verbs on it."""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import MERGE, Connection
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS, EVENTS
from ddpjob.errors import Conflict, JobFailed, JobTimeout, NotFound, Refused
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ddpjob.client.live import News
    from ddpjob.client.logs import LogLine
    from ddpjob.client.threads import Pipe


class Job(Snapshot):
    """A snapshot of a job, and verbs. Verbs that return a Job bring this one up to date first."""

    def __init__(self, connection: Connection, body: Body) -> None:
        super().__init__(body)
        self._connection = connection

    def _repr_html_(self) -> str:
        from ddpjob.client.html import table

        return table([self], time.time())

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
        with closing(self._changes(deadline)) as changes:
            for job in changes:
                if job.is_finished or wanted is not None and job._is_at(wanted):
                    if check:
                        job.raise_if_failed()
                    return job
        raise JobTimeout(self, f"{self.name} is {self.state} after {timeout:g} s, not {until}")

    def result(self, timeout: float | None = None) -> Any:
        """Return what rank 0 has left, which is JSON, once the job has succeeded.

        Raises JobFailed, JobTimeout, ResultTooLarge, NoResult, and NotFound.
        """
        from ddpjob.client.results import value_of

        return value_of(self.wait(timeout=timeout))

    def follow(self, *, timeout: float | None = None) -> Self:
        """Show the job until it is finished: in a notebook live, elsewhere line by line.

        An interrupt ends the looking on alone, and says how to come back. Raises JobTimeout after
        `timeout` seconds, and NotFound if the job is deleted.
        """
        from ddpjob.client.live import follow

        follow(self, timeout)
        return self

    def news(self) -> "AbstractContextManager[Pipe[News]]":
        """Return a pipe of what happens to the job, for displays."""
        from ddpjob.client.live import news

        return news(self)

    def ways_back(self) -> list[str]:
        """Return lines that say how to come back to the job, for displays."""
        from ddpjob.client.live import ways_back

        return ways_back(self, self._connection.expression)

    def apart(self) -> "Job":
        """Return this job on a connection of its own, which `close` closes."""
        return Job(self._connection.apart(), self.body)

    def close(self) -> None:
        """End the requests of the job's connection, which it may share with others."""
        self._connection.close()

    def watch(self) -> Iterator["Job"]:
        """Yield a snapshot now and at each change, until the job is finished.

        Raises NotFound if it is deleted.
        """
        with closing(self._changes(None)) as changes:
            for job in changes:
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
        """Return the Python stacks of the ranks of each node, by node rank."""
        raise NotImplementedError

    def suspend(self) -> "Job":
        """End the pods, and keep the job. Its ranks have their grace period to save."""
        return self.patch({"spec": {"suspend": True}})

    def resume(self) -> "Job":
        """Start the suspended job again, with a new attempt."""
        return self.patch({"spec": {"suspend": False}})

    def rerun(self, **set: Any) -> "Job":
        """Create a new job of the same spec, with fields of `set` changed."""
        raise NotImplementedError

    def delete(self) -> None:
        """Delete the job, and with it all that it owns."""
        body = {"preconditions": {"uid": self.uid}, "propagationPolicy": "Background"}
        path = DDPJOBS.path(self.namespace, self.name)
        self._connection.request("DELETE", path, body)

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
        error = JobFailed(
            self.name,
            why.text(why.condition(self.body.get("status"), "Failed"), "reason") or "Failed",
            rank=why.number(failure, "rank"),
            exit_code=why.number(failure, "exitCode"),
            **{name: why.text(failure, name) or None for name in texts},
            message=str(failure.get("message") or ""),
            traceback=str(failure.get("traceback") or ""),
        )
        error.job = self
        raise error

    def _take(self, body: Body) -> "Job":
        if self.uid and why.text(body, "metadata", "uid") != self.uid:
            raise NotFound(404, "NotFound", f"{self.name} was deleted; another job has its name")
        self.body = body
        return self

    def _changes(self, deadline: float | None) -> Generator["Job", None, None]:
        """Yield this job now and after each change, until `deadline`. Raises NotFound."""
        yield self.refresh()
        watch = self._connection.watch(
            DDPJOBS, namespace=self.namespace, after=self.body, deadline=deadline
        )
        with closing(watch):  # an error would keep its connection open as long as itself
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
