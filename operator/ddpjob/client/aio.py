"""The client for asyncio: the same names, awaitable.

Each call runs the synchronous client in a thread of its own, on a connection of its own. When a
call is cancelled, or nobody reads an iterator any more, that connection is closed, so the thread
ends too. So there is one implementation of requests, watches and logs.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Container,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ddpjob.client import creation
from ddpjob.client.client import Client, select
from ddpjob.client.connection import Connection
from ddpjob.client.events import Event
from ddpjob.client.html import table
from ddpjob.client.job import Job
from ddpjob.client.logs import LogLine
from ddpjob.client.snapshot import Snapshot
from ddpjob.client.threads import Pipe
from ddpjob.client.why import REFUSED_SECONDS
from ddpjob.errors import DDPJobError
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.code.archive import CodeArchive

T = TypeVar("T")
# Seconds for which a call that was cancelled waits until what it has done is undone.
UNDO_SECONDS = 10.0


class AsyncJob(Snapshot):
    """A snapshot of a job, and verbs. Verbs that return a job bring this one up to date first."""

    def __init__(self, connection: Connection, body: Body) -> None:
        super().__init__(body)
        self._connection = connection

    def _repr_html_(self) -> str:
        return table([self], time.time())

    async def refresh(self) -> Self:
        """Read the job again. Raises NotFound if it, or this job of the name, is gone."""
        return await self._do(Job.refresh)

    async def wait(
        self,
        until: str = "finished",
        *,
        timeout: float | None = None,
        check: bool = True,
        refused_after: float | None = REFUSED_SECONDS,
    ) -> Self:
        """Return the job once it is `finished`, `running`, or at `step=N` at least.

        Raises as `Job.wait`. The job runs on if this is cancelled.
        """
        limits = {"timeout": timeout, "refused_after": refused_after}
        return await self._do(lambda job: job.wait(until, check=check, **limits))

    async def result(self, timeout: float | None = None) -> Any:
        """Return what rank 0 has left, which is JSON, once the job has succeeded.

        Raises as `Job.result`.
        """
        return await self._call(lambda job: job.result(timeout))

    async def watch(self) -> AsyncGenerator[Self, None]:
        """Yield a snapshot now and at each change, until the job is finished.

        Raises NotFound if it is deleted.
        """
        async with aclosing(self._iterate(Job.watch)) as changes:
            async for job in changes:
                yield type(self)(self._connection, job.body)

    async def logs(
        self,
        *,
        rank: int | str | None = None,
        attempt: int | str = "current",
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        container: str | None = None,
    ) -> AsyncGenerator[LogLine, None]:
        """Yield lines of the ranks' logs, as `Job.logs` does."""
        wanted: dict[str, Any] = {"rank": rank, "attempt": attempt, "since": since}
        wanted |= {"follow": follow, "tail": tail, "container": container}
        made = self._iterate(lambda job: job.logs(**wanted))
        async with aclosing(made) as lines:
            async for line in lines:
                yield line

    async def events(self) -> list[Event]:
        """Return the Kubernetes events about the job, oldest first."""
        return await self._call(Job.events)

    async def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks, as `Job.stacks` does."""
        return await self._call(Job.stacks)

    async def suspend(self) -> Self:
        """End the pods, and keep the job. Its ranks have their grace period to save."""
        return await self._do(Job.suspend)

    async def resume(self) -> Self:
        """Start the suspended job again, with a new attempt."""
        return await self._do(Job.resume)

    async def rerun(
        self, *, name: str | None = None, script_args: Sequence[str] | None = None, **set: Any
    ) -> Self:
        """Create a new job of the same spec and code, as `Job.rerun` does, and return it."""
        job = Job(self._connection.apart(), self.body)
        made = await _in_thread(
            lambda: job.rerun(name=name, script_args=script_args, **set),
            job.close,
            undo=partial(_delete, self._connection),
        )
        return type(self)(self._connection, made.body)

    async def patch(self, changes: Mapping[str, Any]) -> Self:
        """Change the job by a JSON merge patch, and return it. Raises Conflict for another uid."""
        return await self._do(lambda job: job.patch(changes))

    async def delete(self) -> None:
        """Delete the job, and with it all that it owns."""
        await self._call(Job.delete)

    def raise_if_failed(self) -> None:
        """Raise JobFailed, with the primary failure, if the job has failed."""
        Job(self._connection, self.body).raise_if_failed()

    async def _do(self, verb: Callable[[Job], Job]) -> Self:
        """Return this job after the verb, which brings it up to date."""
        self.body = (await self._call(verb)).body
        return self

    async def _call(self, verb: Callable[[Job], T]) -> T:
        job = Job(self._connection.apart(), self.body)
        return await _in_thread(lambda: verb(job), job.close)

    def _iterate(self, verb: Callable[[Job], Iterator[T]]) -> AsyncGenerator[T, None]:
        job = Job(self._connection.apart(), self.body)
        return _read(lambda: verb(job), job.close)


class AsyncJobList(list[AsyncJob]):
    """Jobs, newest first. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return table(self, time.time())


class AsyncClient:
    """The jobs of one namespace, by default that of the kubeconfig's context.

    `async with` closes it at the end of the block.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`note` is called, in a thread, with a line for people when the server is slow."""
        self.connection = Connection(namespace, context=context, kubeconfig=kubeconfig, note=note)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the calls under way, and close the connections that are kept open."""
        self.connection.close()

    @property
    def namespace(self) -> Awaitable[str]:
        """Return the namespace whose jobs these are."""
        return self._call(lambda client: client.namespace)

    @property
    def user(self) -> Awaitable[str]:
        """Return the user's name, as it stands in the annotation of her jobs."""
        return self._call(lambda client: client.user)

    async def submit(
        self,
        job: "api.DDPJob | Mapping[str, Any] | Path",
        *,
        code: "Path | CodeArchive | None" = None,
        dry_run: bool = False,
    ) -> AsyncJob:
        """Create a job, with the folder `code` if there is one, and return it.

        Raises as `Client.submit`. If this is cancelled, the job does not exist, or a note of the
        error says that it may.
        """
        client = Client.on(self.connection.apart())
        made = await _in_thread(
            lambda: client.submit(job, code=code, dry_run=dry_run),
            client.connection.close,
            undo=None if dry_run else partial(_delete, self.connection),
        )
        return AsyncJob(self.connection, made.body)

    async def job(self, name: str) -> AsyncJob:
        """Return the job of this name. Raises NotFound."""
        found = await self._call(lambda client: client.job(name))
        return AsyncJob(self.connection, found.body)

    async def jobs(
        self,
        *,
        state: str | None = None,
        mine: bool = False,
        labels: str = "",
        all_namespaces: bool = False,
    ) -> AsyncJobList:
        """Return jobs, newest first, as `Client.jobs` does."""

        def make(body: Body) -> AsyncJob:
            return AsyncJob(self.connection, body)

        wanted: dict[str, Any] = {"state": state, "mine": mine, "all_namespaces": all_namespaces}
        found = await self._call(lambda client: select(client, make, labels=labels, **wanted))
        return AsyncJobList(found)

    async def changes(
        self,
        jobs: Sequence[AsyncJob],
        *,
        timeout: float | None = None,
        left: Container[str] | None = None,
        refused_after: float | None = None,
    ) -> AsyncGenerator[AsyncJob, None]:
        """Yield these jobs now, then each again when it changes, as `Client.changes` does."""
        client = Client.on(self.connection.apart())
        known = [Job(client.connection, job.body) for job in jobs]
        limits = {"timeout": timeout, "refused_after": refused_after}
        made = _read(lambda: client.changes(known, left=left, **limits), client.close)
        async with aclosing(made) as changes:
            async for job in changes:
                yield AsyncJob(self.connection, job.body)

    async def newest(self) -> AsyncJob:
        """Return the newest job that this user has made with the client. Raises NotFound."""
        found = await self._call(Client.newest)
        return AsyncJob(self.connection, found.body)

    def _call(self, verb: Callable[[Client], T]) -> Coroutine[Any, Any, T]:
        client = Client.on(self.connection.apart())
        return _in_thread(lambda: verb(client), client.connection.close)


def _delete(connection: Connection, job: Job) -> None:
    """Delete a job that nobody waits for any more; the connection may be closed by now."""
    other = connection.outliving()
    try:
        creation.delete(other, job.body)
    finally:
        other.close()


async def _in_thread(
    function: Callable[[], T],
    on_cancel: Callable[[], None],
    *,
    undo: Callable[[T], None] | None = None,
) -> T:
    """Return what a function returns that runs in a thread of its own.

    A thread of its own, because hundreds may wait for a job at once, and a pool has few. When this
    is cancelled, the thread is not waited for; but with `undo` it is, for UNDO_SECONDS at most, and
    what it has returned meanwhile is undone.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = context.run(function), None
        except BaseException as error:
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=run, name="ddpjob", daemon=True).start()
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError as stopped:
        on_cancel()
        if undo is None:
            future.cancel()
        elif left := await _undone(future, undo):
            stopped.add_note(left)
        raise
    return future.result()


async def _undone(future: "asyncio.Future[T]", undo: Callable[[T], None]) -> str:
    """Undo what a thread has done, once it has ended. Return what is left to do if that fails."""
    left = "the job may be left behind: see Client.jobs(mine=True)"
    try:
        async with asyncio.timeout(UNDO_SECONDS):
            await asyncio.wait({future})
            error = future.exception()
            if error is None:
                await _in_thread(lambda: undo(future.result()), lambda: None)
    except (TimeoutError, DDPJobError):
        future.cancel()
        return left
    return getattr(error, "advice", "")


async def _read(
    source: Callable[[], Iterator[T]], on_end: Callable[[], None]
) -> AsyncGenerator[T, None]:
    """Yield what an iterator yields that is read by a thread of its own."""
    loop, has_news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(has_news.set)

    pipe = Pipe[T](tell)
    pipe.read(source)
    try:
        while True:
            has_news.clear()
            items = pipe.take(0)
            if items is None:
                return
            for item in items:
                yield item
            if items:
                await asyncio.sleep(0)  # a log may always have news
            else:
                await has_news.wait()
    finally:
        pipe.close()
        on_end()
