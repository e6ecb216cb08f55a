"""Reads the log of one pod over HTTP: over cut connections, and until its container has ended."""

import time
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from typing import Any

from ddpjob.client.answers import IDLE
from ddpjob.client.connection import CLOSED, FIRST_PAUSE, LONGEST_PAUSE, TRIES, Connection
from ddpjob.client.logs import Pod
from ddpjob.client.resume import Line, Resume, Splitter
from ddpjob.cluster import PODS
from ddpjob.errors import NotFound, Refused, Unavailable
from ddpjob.times import timestamp

CHUNK = 64 * 1024
# A stream in which nothing comes for so long is opened anew: its connection may be dead.
IDLE_SECONDS = 60.0
# Between two lines that say that the server does not answer.
NOTE_SECONDS = 30.0


class End(Enum):
    """How a stream has ended."""

    CLEAN = "clean"
    CUT = "cut"
    WAITING = "waiting"
    """The container has not started."""
    GONE = "gone"


class PodLog:
    """The log of a pod's container. `is_over` says whether the container has ended."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        pod: Pod,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self._connection, self._pod, self._is_over = connection, pod, is_over
        self._path = PODS.path(namespace, pod.name, "log")
        self._resume = Resume()
        self._splitter = Splitter()
        self._noted_at = -NOTE_SECONDS
        self.is_complete = True
        """Whether nothing is missing, as far as anybody can know."""

    def lines(
        self,
        *,
        follow: bool,
        tail: int | None = None,
        since: float | None = None,
        goes_on: bool = False,
    ) -> Iterator[list[Line]]:
        """Yield all lines that have not been yielded, to the log's end.

        With `follow`, the end is that of the container. It begins with the last `tail` lines, and
        with those since a Unix time. With `goes_on` a last line without an end is left for the next
        call.
        """
        tries, pause = 0, FIRST_PAUSE
        while True:
            is_over, began, before = self._is_over(), time.monotonic(), self._resume.last
            query = self._begin(tail, since)
            if follow and not is_over:
                query["follow"] = "true"
            end = yield from self._stream(query, last_try=not follow and tries >= TRIES)
            if end is End.CLEAN and (is_over or not follow):
                last = self._new([] if goes_on else self._splitter.end()) + self._resume.end()
                self.is_complete = not self._resume.gap
                yield last
                return
            if end is End.GONE or (end is End.WAITING and not follow):
                return
            tries += 1
            if self._resume.last is not before or time.monotonic() - began > 1.0:
                pause = FIRST_PAUSE
            self._connection.pause(pause)
            # A stream that ends well, and a container that starts, are worth another look soon.
            pause = min(2 * pause, LONGEST_PAUSE if end is End.CUT else 1.0)

    def _begin(self, tail: int | None, since: float | None) -> dict[str, Any]:
        """Return what asks for the lines after the last one, or for those to begin with."""
        query: dict[str, Any] = {"container": self._pod.container, "timestamps": "true"}
        if self._resume.since is not None:
            return query | {"sinceTime": timestamp(self._resume.since)}
        if tail is not None:
            query["tailLines"] = tail
        return query if since is None else query | {"sinceTime": timestamp(since)}

    def _stream(self, query: dict[str, Any], *, last_try: bool) -> Generator[list[Line], None, End]:
        """Yield the new lines of one stream, and return how it has ended."""
        self._resume.restart()
        self._splitter = Splitter()
        opened = self._connection.open(self._path, query=query, read_seconds=IDLE_SECONDS)
        try:
            with opened as answer:
                for chunk in answer.stream(CHUNK):
                    if new := self._new(self._splitter.feed(chunk)):
                        yield new
        except NotFound as error:
            if not error.message.startswith("pods "):  # its node
                self.is_complete = False
                self._connection.note(f"{self._pod.name}: {error.message}")
            return End.GONE
        except Refused as error:
            if error.code != 400:
                raise
            # Of a pod that its node refused, or evicted, there is no container, and no log.
            is_over = self._is_over()
            if "waiting to start" not in error.message:
                self._note(error.message if is_over else f"{error.message}; trying again")
            return End.GONE if is_over else End.WAITING
        except Unavailable as error:
            if last_try or error.reason == CLOSED:
                raise
            if error.reason != IDLE:
                self.is_complete = False
                self._note(f"{error.message}; trying again")
            return End.CUT
        self.is_complete = not self._resume.gap
        return End.CLEAN

    def _new(self, lines: list[Line]) -> list[Line]:
        """Return the lines that have not been given; the kubelet's own words become notes."""
        for line in lines:
            if not line.time and line.text:
                text = line.text[:500].decode(errors="replace")
                self._connection.note(f"{self._pod.name}: the kubelet says: {text}")
        return self._resume.take(line for line in lines if line.time)

    def _note(self, text: str) -> None:
        now = time.monotonic()
        if now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            self._connection.note(f"{self._pod.name}: {text}")
