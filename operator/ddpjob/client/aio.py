"""The client for asyncio: the same names, awaitable.

Each verb is made of that of the synchronous client, which runs in a thread of its own, on a
connection of its own. When a call is cancelled, or nobody reads an iterator any more, that
connection is closed, so the thread ends too.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from ddpjob.client.client import Client, Connected, JobList
from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.connection import Connection
from ddpjob.cluster.threads import Pipe
from ddpjob.json_depth import Body

P = ParamSpec("P")
S = TypeVar("S", bound=Client | Job)
T = TypeVar("T")
U = TypeVar("U")
# Seconds for which a call that was cancelled waits until what it has created is deleted again.
UNDO_SECONDS = 10.0


class _Twin(Generic[S]):
    """What has the verbs of a synchronous object."""

    connection: Connection
    _apart: Callable[[], S]
    """Returns the synchronous object, on a connection that its `close` closes."""

    async def _call(self, verb: Callable[[S], T], undo_seconds: float = 0.0) -> T:
        apart = self._apart()
        return await _in_thread(partial(verb, apart), apart.close, undo_seconds)


def _awaitable(
    verb: Callable[Concatenate[S, P], T], made: Callable[[Any, T], U], undo_seconds: float = 0.0
) -> Callable[Concatenate[_Twin[S], P], Coroutine[Any, Any, U]]:
    """Return the verb, awaitable; `made` makes its result of the twin and the synchronous one."""

    @wraps(verb)
    async def call(twin: _Twin[S], /, *args: P.args, **options: P.kwargs) -> U:
        found = await twin._call(lambda apart: verb(apart, *args, **options), undo_seconds)
        return made(twin, found)

    return call


def _iterating(
    verb: Callable[Concatenate[S, P], Iterator[T]], made: Callable[[Any, T], U]
) -> Callable[Concatenate[_Twin[S], P], AsyncGenerator[U, None]]:
    """Return the verb as an asynchronous iterator."""

    @wraps(verb)
    async def call(
        twin: _Twin[S], /, *args: P.args, **options: P.kwargs
    ) -> AsyncGenerator[U, None]:
        apart = twin._apart()
        source = partial(verb, apart, *args, **options)
        async with aclosing(_read(source, apart.close)) as items:
            async for item in items:
                yield made(twin, item)

    return call


def _as_it_is(twin: _Twin[Any], found: T) -> T:
    return found


def _same(twin: "AsyncJob", found: Job) -> "AsyncJob":
    """Return the job itself, up to date."""
    twin.body = found.body
    return twin


def _job(twin: _Twin[Any], found: Job) -> "AsyncJob":
    return AsyncJob(twin.connection, found.body)


def _jobs(twin: _Twin[Any], found: Sequence[Job]) -> "AsyncJobList":
    return AsyncJobList(_job(twin, job) for job in found)


class AsyncJob(Snapshot, _Twin[Job]):
    """A snapshot of a job, and verbs. Verbs that return a job bring this one up to date first."""

    def __init__(self, connection: Connection, body: Body) -> None:
        super().__init__(body)
        self.connection = connection

    def _apart(self) -> Job:
        return Job(self.connection.apart(), self.body)

    _repr_html_ = Job._repr_html_
    refresh = _awaitable(Job.refresh, _same)
    wait = _awaitable(Job.wait, _same)
    result = _awaitable(Job.result, _as_it_is)
    watch = _iterating(Job.watch, _job)
    logs = _iterating(Job.logs, _as_it_is)
    events = _awaitable(Job.events, _as_it_is)
    stacks = _awaitable(Job.stacks, _as_it_is)
    suspend = _awaitable(Job.suspend, _same)
    resume = _awaitable(Job.resume, _same)
    update = _awaitable(Job.update, _same)
    rerun = _awaitable(Job.rerun, _job, UNDO_SECONDS)  # type: ignore[arg-type]  # its **set
    patch = _awaitable(Job.patch, _same)
    delete = _awaitable(Job.delete, _as_it_is)


class AsyncJobList(list[AsyncJob]):
    """Jobs, newest first. A notebook shows them as a table."""

    _repr_html_ = JobList._repr_html_


class AsyncClient(Connected, _Twin[Client]):
    """The jobs of one namespace, by default that of the kubeconfig's context.

    `async with` closes it at the end of the block.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _apart(self) -> Client:
        client = Client()
        client.connection = self.connection.apart()
        return client

    def close(self) -> None:
        """End the calls under way."""
        self.connection.close()

    @property
    def namespace(self) -> Awaitable[str]:
        """Return the namespace whose jobs these are."""
        return self._call(lambda client: client.namespace)

    @property
    def user(self) -> Awaitable[str]:
        """Return the user's name, as it stands in the annotation of her jobs."""
        return self._call(lambda client: client.user)

    submit = _awaitable(Client.submit, _job, UNDO_SECONDS)
    job = _awaitable(Client.job, _job)
    jobs = _awaitable(Client.jobs, _jobs)
    changes = _iterating(Client.changes, _job)
    newest = _awaitable(Client.newest, _job)


async def _in_thread(
    function: Callable[[], T], on_cancel: Callable[[], None], undo_seconds: float
) -> T:
    """Return what a function returns that runs in a thread of its own.

    A thread of its own, because hundreds may wait for a job at once, and a pool has few. When this
    is cancelled, the thread has `undo_seconds` to undo what it has done.
    """
    done, context = Future[T](), contextvars.copy_context()
    done.set_running_or_notify_cancel()  # so that it is no error to be cancelled

    def run() -> None:
        try:
            done.set_result(context.run(function))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="ddpjob", daemon=True).start()
    future = asyncio.wrap_future(done)
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError as stopped:
        on_cancel()
        await asyncio.wait({future}, timeout=undo_seconds)
        if not future.cancel() and (left := getattr(future.exception(), "advice", "")):
            stopped.add_note(left)
        elif undo_seconds and not future.done():
            stopped.add_note("the job may be left behind: see Client.jobs(mine=True)")
        raise
    return future.result()


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
