"""Reads the log of one pod over HTTP: over cut connections, and until its container has ended."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from ddpjob.cluster import PODS
from ddpjob.cluster.answers import IDLE
from ddpjob.cluster.connection import CLOSED, FIRST_PAUSE, TRIES, Connection
from ddpjob.cluster.logs import Pod
from ddpjob.cluster.resume import Line, Resume
from ddpjob.errors import NotFound, Refused, Unavailable
from ddpjob.times import timestamp

CHUNK = 64 * 1024
# A stream in which nothing comes for so long is opened anew: its connection may be dead.
IDLE_SECONDS = 60.0
# Between two lines that say that the server does not answer.
NOTE_SECONDS = 30.0


class PodLog:
    """The log of a pod's container. `is_over` says whether the container has ended."""

    def __init__(
        self, connection: Connection, namespace: str, pod: Pod, is_over: Callable[[], bool]
    ) -> None:
        self._connection, self._pod, self._is_over = connection, pod, is_over
        self._path = PODS.path(namespace, pod.name, "log")
        self._resume = Resume()
        self._noted_at = -math.inf

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
        call. A note says if lines are missing.
        """
        failures, is_cut = 0, False
        while True:
            ends = not follow or self._is_over()  # asked before: until then the log may grow
            before = self._resume.last
            try:
                yield from self._stream(self._query(tail, since, follow=not ends))
                is_cut = False
                if ends:
                    yield [] if goes_on else self._told(self._resume.end())
                    return self._tell_missing(self._resume.has_gap)
            except NotFound as error:
                if not error.message.startswith("pods "):  # its node
                    self._connection.note(f"{self._pod.name}: {error.message}")
                return self._tell_missing(is_cut)
            except Refused as error:
                if error.code != 400:
                    raise
                # Of a pod that its node refused, or evicted, there is no container, and no log.
                if "waiting to start" not in error.message:
                    self._note(error.message)
                if ends:
                    return None
            except Unavailable as error:
                if error.reason == CLOSED or not follow and failures >= TRIES:
                    raise
                if error.reason != IDLE:
                    is_cut = True
                    self._note(f"{error.message}; trying again")
            failures = 0 if self._resume.last is not before else failures + 1
            self._connection.pause(FIRST_PAUSE * 2 ** min(failures, 3))

    def _query(self, tail: int | None, since: float | None, *, follow: bool) -> dict[str, Any]:
        """Return what asks for the lines after the last one, or for those to begin with."""
        query: dict[str, Any] = {"container": self._pod.container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._resume.since is not None:
            tail, since = None, self._resume.since
        if tail is not None:
            query["tailLines"] = tail
        if since is not None:
            query["sinceTime"] = timestamp(since)
        return query

    def _stream(self, query: dict[str, Any]) -> Iterator[list[Line]]:
        """Yield the new lines of one stream."""
        self._resume.restart()
        opened = self._connection.open(self._path, query=query, read_seconds=IDLE_SECONDS)
        with opened as answer:
            for chunk in answer.stream(CHUNK):
                yield self._told(self._resume.feed(chunk))

    def _told(self, lines: list[Line]) -> list[Line]:
        """Return the lines of the log; the kubelet's own words become notes."""
        for line in lines:
            if not line.time and line.text:
                text = line.text[:500].decode(errors="replace")
                self._connection.note(f"{self._pod.name}: the kubelet says: {text}")
        return [line for line in lines if line.time]

    def _tell_missing(self, is_missing: bool) -> None:
        if is_missing:
            text = "lines are missing, which nobody has any more"
            self._connection.note(f"{self._pod.name}: {text}")

    def _note(self, text: str) -> None:
        now = time.monotonic()
        if now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            self._connection.note(f"{self._pod.name}: {text}")
