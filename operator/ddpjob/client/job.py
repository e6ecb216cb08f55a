"""A DDPJob, and the verbs on it."""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from ddpjob import names, why
from ddpjob.client.snapshot import Event, Snapshot, read_event, watch_jobs
from ddpjob.cluster import DDPJOBS, EVENTS, PODS
from ddpjob.cluster.connection import MERGE, Connection
from ddpjob.cluster.threads import Pipe
from ddpjob.errors import (
    Conflict,
    DDPJobError,
    JobTimeout,
    NoResult,
    NotFound,
    Refused,
    ResultTooLarge,
)
from ddpjob.json_depth import Body, merged
from ddpjob.times import unix_seconds

if TYPE_CHECKING:
    from ddpjob.client.display import News
    from ddpjob.cluster.logs import LogLine
    from ddpjob.code.archive import CodeArchive

# Between two looks at the pods that are left of a deleted job.
POLL_SECONDS = 1.0
# Names that a rerun tries.
MAX_RERUNS = 100


class Job(Snapshot):
    """A snapshot of a job, and verbs. Verbs that return a Job bring this one up to date first."""

    def __init__(self, connection: Connection, body: Body) -> None:
        super().__init__(body)
        self._connection = connection

    def _repr_html_(self: Snapshot) -> str:
        from ddpjob.client.display import table

        return table([self], time.time())

    def refresh(self) -> "Job":
        """Read the job again. Raises NotFound if it, or this job of the name, is gone."""
        return self._take(self._connection.get(DDPJOBS, self.name, namespace=self.namespace))

    def wait(
        self,
        until: str = "finished",
        *,
        timeout: float | None = None,
        check: bool = True,
        refused_after: float | None = why.REFUSED_SECONDS,
    ) -> "Job":
        """Return the job once it is `finished`, `running`, or at `step=N` at least.

        A finished job is never waited for, nor an Idle one, whose ranks have ended and whose pods
        are kept. With `check`, a failed one raises JobFailed. Raises JobTimeout after `timeout`
        seconds, JobRefused once the job's pods have been refused for `refused_after` seconds,
        NotFound if the job is deleted, and ValueError for another `until`. The job runs on in all
        of these cases.
        """
        wanted = parse_until(until)
        limits: dict[str, Any] = {"timeout": timeout, "refused_after": refused_after}
        job = self.until(lambda job: job.is_at(wanted), goal=until, **limits)
        if check:
            job.raise_if_failed()
        return job

    def result(self, timeout: float | None = None) -> Any:
        """Return what rank 0 has left, which is JSON, once its ranks have ended well.

        Raises JobFailed, JobTimeout, ResultTooLarge, NoResult, and NotFound.
        """
        return value_of(self.wait(timeout=timeout))

    def follow(self, *, timeout: float | None = None) -> Self:
        """Show the job until it has ended, as for `wait`: in a notebook live, elsewhere in lines.

        An interrupt ends the looking on alone, and says how to come back. Raises JobTimeout after
        `timeout` seconds, JobRefused once its pods have been refused for 30 s, and NotFound if the
        job is deleted.
        """
        from ddpjob.client.display import follow

        follow(self, self.news(), self.ways_back, timeout)
        return self

    @contextmanager
    def news(self) -> "Iterator[Pipe[News]]":
        """Yield a pipe of what happens to the job, for displays."""
        apart = copy(self)
        apart._connection = self._connection.apart()
        pipe: Pipe[News] = Pipe()
        try:
            pipe.read(apart.watch)
            pipe.read(apart._lines)
            yield pipe
            self.refresh()
        finally:
            pipe.close()
            apart.close()

    def ways_back(self) -> list[str]:
        """Return lines that say how to come back to the job, for displays."""
        found = f'{self._connection.expression}.job("{self.name}")'
        verbs = {".follow()": "follow again", ".result()": "wait for its result"}
        verbs |= {".suspend()": "stop, keep the job", ".delete()": "stop and remove"}
        width = len(found) + max(map(len, verbs))
        lines = [f"  {found + verb:{width}}   {words}" for verb, words in verbs.items()]
        return [f"detached: {self.name} runs on", *lines]

    def close(self) -> None:
        """End the requests of the job's connection, which it may share with others."""
        self._connection.close()

    def until(
        self,
        holds: Callable[["Job"], bool],
        *,
        timeout: float | None = None,
        refused_after: float | None = None,
        goal: str = "as wanted",
    ) -> "Job":
        """Return the job once something holds of it, which is its `goal`. Raises as `wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with closing(self._changes(deadline, refused_after)) as changes:
            for job in changes:
                if holds(job):
                    return job
        raise JobTimeout(self, f"{self.name} is {self.state} after {timeout:g} s, not {goal}")

    def watch(self) -> Iterator["Job"]:
        """Yield a snapshot now and at each change, until the job is finished.

        Raises NotFound if it is deleted.
        """
        with closing(self._changes(None)) as changes:
            for job in changes:
                yield copy(job)
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
        container: str | None = None,
    ) -> Iterator["LogLine"]:
        """Yield lines of the ranks' logs: of `rank`, such as `3` or `0,8-11`, else of rank 0.

        Of a job that has failed or restarts, these are the last lines of the rank that failed
        first, and with `follow` then those of rank 0 since. `attempt` is a number, `current` or
        `all`. With `follow` it goes on over restarts until the job is finished. `since` is in
        seconds before now, `tail` in lines of each pod. `container` is an init container or a
        sidecar of those pods; by default it is the trainer, or the init container that failed.
        Raises NotFound for a rank, or a container, that the job does not have.
        """
        from ddpjob.client.follow import Logs, Query, check_is_there, choices, select

        job: Snapshot = self
        wanted = select(rank=rank, attempt=attempt)
        if wanted:
            check_is_there(self, wanted)
        begin = None if since is None else time.time() - since
        asked = Query(follow=follow, tail=tail, since=begin, container=container)
        for query in choices(self, wanted, asked):
            logs = Logs(self._connection, job, query)
            for batch in logs.batches():
                yield from batch
            job = logs.job

    def events(self) -> list[Event]:
        """Return the Kubernetes events about the job, oldest first."""
        about = f"involvedObject.uid={self.uid}"
        found = self._connection.list(
            EVENTS, namespace=self.namespace, fields=about, keep=read_event
        )
        return sorted(found.items, key=lambda event: unix_seconds(event.time) or 0.0)

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks that answer, by global rank.

        Raises Forbidden without the right to `pods/portforward`, or another ClusterError.
        """
        from ddpjob.client import agents

        answers = agents.ask(self._connection, self.body, "/stacks")
        return agents.read_stacks(answers, self.processes_per_node)

    def suspend(self) -> "Job":
        """End the pods, and keep the job. Its ranks have their grace period to save."""
        return self.patch({"spec": {"suspend": True}})

    def resume(self) -> "Job":
        """Start the suspended job again, with a new attempt."""
        return self.patch({"spec": {"suspend": False}})

    def update(
        self,
        *,
        code: "Path | CodeArchive | None" = None,
        script_args: Sequence[str] | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> "Job":
        """Have the ranks go on with other code, arguments or variables, and return the job.

        `code` is a folder, or what `pack` has made of one; `script_args` are the words in `args`
        after the script, or after `-m` and the module. Their pods stay, unless `env` has a new
        variable, the job had no code before, or `failurePolicy.restartStrategy` is Recreate.
        Raises InvalidJob, Conflict for another job of the name, or another ClusterError.
        """
        from ddpjob.client import updates

        self.refresh()
        archive = updates.load(code)
        new = updates.edited(self.body, archive, script_args, env)
        return self.patch(updates.patch(self._connection, self.body, new, archive))

    def rerun(
        self, *, name: str | None = None, script_args: Sequence[str] | None = None, **set: Any
    ) -> "Job":
        """Create a new job of the same spec and code, with fields of `set` changed, and return it.

        `set` is merged into the spec: `nnodes=4`, `failurePolicy={"maxRestarts": 0}`; None removes
        a field. `script_args` replaces the arguments in `args` after the script, or after `-m` and
        the module. By default the name is this one's with -2, or the next number that is free.
        Raises InvalidJob if its code does not exist any more, or if there is no script, Forbidden
        or another ClusterError.
        """
        from ddpjob.client import edits

        self.refresh()
        spec = merged(self.body["spec"], set)
        if script_args is not None:
            spec = edits.with_script_args(spec, script_args)
        return self.rerun_with(spec, name=name)

    def rerun_with(
        self, spec: Mapping[str, Any], *, name: str | None = None, dry_run: bool = False
    ) -> "Job":
        """Create a new job like this one, with another spec; see `rerun`.

        With `dry_run` the API server checks it, and stores nothing.
        """
        from ddpjob.client import creation, edits
        from ddpjob.errors import AlreadyExists

        first = edits.origin(self.body)
        numbers = range(2, MAX_RERUNS + 2)
        for taken in [name] if name else [edits.rerun_name(first, n) for n in numbers]:
            body = edits.rerun(self.body, spec, taken)
            body["metadata"]["annotations"][names.USER_ANNOTATION] = self._connection.user
            try:
                made = creation.create(self._connection, body, dry_run=dry_run)
                return Job(self._connection, made)
            except AlreadyExists:
                if name:
                    raise
        raise Conflict(409, "Conflict", f"{first} has {MAX_RERUNS} reruns; name the new one")

    def delete(self) -> None:
        """Delete the job, and with it all that it owns."""
        body = {"preconditions": {"uid": self.uid}, "propagationPolicy": "Background"}
        path = DDPJOBS.path(self.namespace, self.name)
        self._connection.request("DELETE", path, body)

    def wait_until_gone(self) -> None:
        """Return once neither the job nor a pod of it exists any more."""
        from ddpjob.cluster.logs import read_pod

        # Anybody may give a pod our label, and keep us waiting.
        keep = partial(read_pod, job=self.name, job_uid=self.uid)
        with suppress(NotFound):
            self.until(lambda job: False)
        labels = f"{names.JOB_UID_LABEL}={self.uid}"
        while self._connection.list(PODS, namespace=self.namespace, labels=labels, keep=keep).items:
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

    def _lines(self) -> "Iterator[News]":
        """Yield lines of rank 0; without the right to read them, say so and go on without."""
        try:
            yield from self.logs(rank=0, follow=True)
        except DDPJobError as error:
            yield f"no lines of rank 0: {error}"

    def _take(self, body: Body) -> "Job":
        if self.uid and why.text(body, "metadata", "uid") != self.uid:
            raise NotFound(404, "NotFound", f"{self.name} was deleted; another job has its name")
        self.body = Snapshot(body).body
        return self

    def _changes(
        self, deadline: float | None, refused_after: float | None = None
    ) -> Generator["Job", None, None]:
        """Yield this job now and after each change, until `deadline`.

        Raises NotFound, and JobRefused after so many seconds without pods.
        """
        yield self.refresh()
        watch = watch_jobs(self._connection, [self], deadline=deadline, refused_after=refused_after)
        with closing(watch) as bodies:
            for body in bodies:
                yield self._take(body)


def value_of(job: Snapshot) -> Any:
    """Return the value that rank 0 has left, which is JSON. Raises NoResult or ResultTooLarge."""
    left = why.part(job.body, "status", "result")
    if left is None:
        raise NoResult(
            job.name,
            f"it is {job.state}, and rank 0 has left nothing",
            "a script leaves a value in the file DDPJOB_RESULT_FILE (docs/progress.md)",
        )
    size, text = why.number(left, "sizeBytes") or 0, why.part(left, "value")
    if text is None and size > names.MAX_RESULT:
        raise ResultTooLarge(job.name, size, names.MAX_RESULT)
    try:
        return json.loads(text or "")
    except ValueError:
        hint = "the last lines of rank 0's log say why"
        raise NoResult(job.name, "it is no JSON", hint) from None


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
