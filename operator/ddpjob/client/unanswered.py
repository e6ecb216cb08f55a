"""Requests that wait for an answer, so that another thread can end the waiting.

urllib3 hands a response out once it has its headers, and before that nothing that could be closed.
So its connections are ones that say which socket they wait at.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_OF_THREAD = threading.local()


class Unanswered:
    """The sockets at which threads wait for the answers to one's requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: set[Any] = set()
        self._is_over = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request of this thread, made within the block, among these."""
        _OF_THREAD.requests = self
        try:
            yield
        finally:
            _OF_THREAD.requests = None

    @contextmanager
    def waiting(self, waits_at: Any) -> Iterator[None]:
        """Count a socket among these for the block."""
        with self._lock:
            self._sockets.add(waits_at)
            is_over = self._is_over
        try:
            if is_over:
                _wake(waits_at)
            yield
        finally:
            with self._lock:
                self._sockets.discard(waits_at)

    def end(self) -> None:
        """Let all of these end as if the server had gone, and those that come too."""
        with self._lock:
            self._is_over = True
            for waits_at in self._sockets:
                _wake(waits_at)


def _wake(waits_at: Any) -> None:
    # Not the method of a TLS socket, which would take from the other thread what that reads with.
    with suppress(OSError):
        socket.socket.shutdown(waits_at, socket.SHUT_RDWR)


def telling(pool: Any) -> Any:
    """Return a urllib3.PoolManager, which has not made a connection yet, whose connections tell."""
    kinds = pool.pool_classes_by_scheme
    pool.pool_classes_by_scheme = {scheme: _telling(kind) for scheme, kind in kinds.items()}
    return pool


def _telling(kind: Any) -> Any:
    class Telling(kind.ConnectionCls):  # type: ignore[misc]
        def getresponse(self) -> Any:
            requests: Unanswered | None = getattr(_OF_THREAD, "requests", None)
            if requests is None or self.sock is None:
                return super().getresponse()
            with requests.waiting(self.sock):
                return super().getresponse()

    return type(kind.__name__, (kind,), {"ConnectionCls": Telling})
