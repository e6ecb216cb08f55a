"""Reads the log of one pod over HTTP: over cut connections, and until its container has ended."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum
from typing import Any

from ddpjob.client.answers import IDLE
from ddpjob.client.connection import CLOSED, FIRST_PAUSE, LONGEST_PAUSE, TRIES, Connection
from ddpjob.client.logs import Pod
from ddpjob.client.pieces import Piece, Splitter
from ddpjob.client.resume import Resume
from ddpjob.cluster import PODS
from ddpjob.errors import NotFound, Refused, Unavailable
from ddpjob.times import timestamp

CHUNK = 64 * 1024
# A stream in which nothing comes for so long is opened anew: its connection may be dead.
IDLE_SECONDS = 60.0
# Between two lines that say that the server does not answer.
NOTE_SECONDS = 30.0

Pieces = Generator[list[Piece], None, "End"]


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
        self._has_new = False
        self._noted_at = -NOTE_SECONDS
        self.is_complete = True
        """Whether nothing is missing, as far as anybody can know."""

    def last(self, lines: int, *, goes_on: bool) -> Iterator[list[Piece]]:
        """Yield the last lines that there are now.

        With `goes_on`, `rest` is read after them, and a last line without an end is left for it.
        """
        query: dict[str, Any] = {"tailLines": lines}
        tries, pause = 1, FIRST_PAUSE
        while True:
            end = yield from self._stream(query, last_try=not goes_on and tries >= TRIES)
            if end is End.CLEAN and not goes_on:
                yield self._new(self._splitter.end()) + self._resume.settle()
            if end is not End.CUT:
                return
            if self._resume.since is not None:  # with a line in hand, `rest` knows where to go on
                break
            self._connection.pause(pause)
            tries, pause = tries + 1, min(2 * pause, LONGEST_PAUSE)
        if not goes_on:
            yield from self.rest(follow=False)

    def rest(
        self, *, follow: bool, since: float | None = None, goes_on: bool = False
    ) -> Iterator[list[Piece]]:
        """Yield all pieces that have not been yielded, to the log's end.

        With `follow`, the end is that of the container. `since` is in Unix seconds. With `goes_on`
        a last line without an end is left for the next call.
        """
        tries, pause = 0, FIRST_PAUSE
        while True:
            is_over, began = self._is_over(), time.monotonic()
            query: dict[str, Any] = {"follow": "true"} if follow and not is_over else {}
            begin = self._resume.since if self._resume.since is not None else since
            if begin is not None:
                query["sinceTime"] = timestamp(begin)
            last_try = not follow and tries >= TRIES
            end = yield from self._stream(query, last_try=last_try)
            if end is End.GONE:
                return
            if end is End.CLEAN and (is_over or not follow):
                yield self._new(() if goes_on else self._splitter.end()) + self._resume.settle()
                return
            if end is End.WAITING and not follow:
                return
            tries += 1
            if self._has_new or time.monotonic() - began > 1.0:
                pause = FIRST_PAUSE
            self._connection.pause(pause)
            # A stream that ends well, and a container that starts, are worth another look soon.
            pause = min(2 * pause, LONGEST_PAUSE if end is End.CUT else 1.0)

    def _stream(self, query: dict[str, Any], *, last_try: bool) -> Pieces:
        """Yield the new pieces of one stream, and return how it has ended."""
        self._resume.restart()
        self._splitter, self._has_new = Splitter(), False
        asked = {"container": self._pod.container, "timestamps": "true", **query}
        opened = self._connection.open("GET", self._path, query=asked, read_seconds=IDLE_SECONDS)
        try:
            with opened as answer:
                for chunk in answer.stream(CHUNK):
                    if new := self._new(self._splitter.feed(chunk)):
                        self._has_new = True
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
            if error.reason == IDLE:
                yield self._resume.settle()
            else:
                self.is_complete = False
                self._note(f"{error.message}; trying again")
            return End.CUT
        self.is_complete = not self._resume.gap
        return End.CLEAN

    def _new(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return the pieces that have not been seen; the kubelet's own words become notes."""
        found: list[Piece] = []
        for piece in pieces:
            if piece.time:
                found += self._resume.take(piece)
            elif piece.text:
                text = piece.text[:500].decode(errors="replace")
                self._connection.note(f"{self._pod.name}: the kubelet says: {text}")
        return found

    def _note(self, text: str) -> None:
        now = time.monotonic()
        if now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            self._connection.note(f"{self._pod.name}: {text}")
