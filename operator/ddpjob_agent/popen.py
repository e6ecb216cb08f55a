"""`subprocess.Popen` for a launcher, whose workers come from its fork server."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import say
from ddpjob_agent.processes import PR_SET_CHILD_SUBREAPER, prctl
from ddpjob_agent.warm import is_buffered, python_words, receive, request, send

# What a caller may ask for where the process is to come from the fork server.
KEYWORDS = {"args", "env", "cwd", "stdin", "stdout", "stderr", "start_new_session"}


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts Python processes warm, where that makes no difference to them.

    They are children of this process as others are, so whatever waits for them works unchanged.
    """

    server: socket.socket | None = None
    is_greeted = False
    refusals: set[str] = set()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.wish: dict[str, Any] = {}
        self.streams: list[int] = []
        if Popen.server is not None and not args[1:] and not set(kwargs) - KEYWORDS:
            self.prepare(args[0] if args else kwargs["args"], kwargs)
        super().__init__(*args, **kwargs)

    def prepare(self, command: Any, kwargs: Mapping[str, Any]) -> None:
        """Note what to ask for, if it is a process of the kind that a fork server makes."""
        if not isinstance(command, (list, tuple)) or not all(isinstance(w, str) for w in command):
            return
        words = python_words(command)
        names = ("stdin", "stdout", "stderr")
        streams = [descriptor(kwargs.get(name), number) for number, name in enumerate(names)]
        env = kwargs.get("env")
        env = dict(os.environ if env is None else env)
        is_python = words and command[0] == sys.executable and not is_buffered(command, env)
        if not is_python or min(streams) < 0:
            return
        cwd = os.path.abspath(kwargs.get("cwd") or ".")
        self.wish = request(command, env, cwd, new_session=bool(kwargs.get("start_new_session")))
        self.streams = streams

    def _execute_child(self, *args: Any) -> None:
        """Make the process; `subprocess` calls it from Python 3.2 to 3.14 at least."""
        pid = ask(self.wish, self.streams) if self.wish else 0
        if not pid:
            return super()._execute_child(*args)  # type: ignore[misc, no-any-return]
        self.pid = pid
        self._child_created = True


def ask(wish: Mapping[str, Any], streams: Sequence[int]) -> int:
    """The pid of a new child of this process; 0 where it must start cold, and why in the log."""
    if Popen.server is None:
        return 0
    why = "the fork server has ended"
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # its parent ends at once and leaves it to us
    try:
        if not Popen.is_greeted:  # until then it imports
            why = receive(Popen.server)[0].get("cold", why)
            Popen.is_greeted = True
        send(Popen.server, wish, streams)
        answer = receive(Popen.server)[0]
        if "pid" in answer:
            return int(answer["pid"])
        why = answer["cold"]
    except (OSError, EOFError):
        Popen.server = None
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
    if why not in Popen.refusals:
        Popen.refusals.add(why)
        say(f"cold start: {why}")
    return 0


def descriptor(stream: Any, default: int) -> int:
    """The number of a stream as `Popen` takes it; negative where it is a pipe or the like."""
    if stream is None:
        return default
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return int(stream if isinstance(stream, int) else stream.fileno())
    return -1


def replace_popen(kind: type[Popen]) -> None:
    """Let this process start others by `kind`, also in modules that have imported the original."""
    original = subprocess.Popen
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("Popen") is original:
            module.Popen = kind  # type: ignore[attr-defined]
