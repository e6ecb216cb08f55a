"""Iterators that threads read into one pipe, whose reader may wait or be told of news.

An error of theirs is raised in the reader.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
# Items that wait to be read. Then the threads wait.
WAITING = 1000


class Pipe(Generic[T]):
    """Items of one or more iterators, each of which is read by a thread of its own.

    `on_news` is called, in such a thread, when there is something to take for a reader that had
    taken all, until it got nothing.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None, most: int = WAITING) -> None:
        self._on_news, self._most = on_news, most
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._sources, self._closed = 0, False
        self._error: BaseException | None = None

    def read(self, source: Callable[[], Iterator[T]]) -> None:
        """Read the iterator that `source` returns, until it ends or the pipe is closed."""
        with self._changed:
            self._sources += 1
        threading.Thread(target=self._pump, args=(source,), name="ddpjob", daemon=True).start()

    def take(self, timeout: float | None = None) -> list[T] | None:
        """Return the items that wait, after at most `timeout` seconds; None once all are read.

        Raises what an iterator has raised, after the items before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_over(), timeout)
            found = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            if found or not self._is_over():
                return found
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Let the threads end, each at its next item."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._sources == 0 or self._error is not None or self._closed

    def _pump(self, source: Callable[[], Iterator[T]]) -> None:
        error = None
        try:
            iterator = source()
            for item in iterator:
                if not self._put(item):
                    break
            getattr(iterator, "close", lambda: None)()
        except BaseException as problem:  # it is the reader's
            error = problem
        with self._changed:
            self._sources -= 1
            self._error = self._error or error
            self._changed.notify_all()
        self._on_news()

    def _put(self, item: T) -> bool:
        """Add an item once there is room, and return whether anybody reads."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._most or self._closed)
            if self._closed:
                return False
            self._items.append(item)
            is_first = len(self._items) == 1
            self._changed.notify_all()
        if is_first:
            self._on_news()
        return True
