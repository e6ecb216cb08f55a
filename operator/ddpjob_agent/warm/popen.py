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
from ddpjob_agent.requests import is_buffered, is_child, python_words, receive, request, send

# What a caller may ask for where the process is to come from the fork server.
KEYWORDS = {"args", "env", "cwd", "stdin", "stdout", "stderr", "start_new_session"}

# An import may take so long, on a slow file system.
ANSWER_SECONDS = 300.0


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts Python processes warm, where that makes no difference to them.

    They are children of this process as others are, so whatever waits for them works unchanged.
    """

    server: socket.socket | None = None
    # Its process, whose children have inherited the socket, and no more than that.
    owner = 0
    is_greeted = False
    refusals: set[str] = set()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.wish: dict[str, Any] = {}
        self.streams: list[int] = []
        is_ours = Popen.server is not None and Popen.owner == os.getpid()
        if is_ours and not args[1:] and not set(kwargs) - KEYWORDS:
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
        if not all(isinstance(word, str) for pair in env.items() for word in pair):
            return
        is_python = words and command[0] == sys.executable and not is_buffered(command, env)
        if not is_python or min(streams) < 0:
            return
        cwd = os.path.abspath(os.fsdecode(kwargs.get("cwd") or "."))
        self.wish = request(command, env, cwd, new_session=bool(kwargs.get("start_new_session")))
        self.streams = streams

    def _execute_child(self, *args: Any) -> None:
        """Make the process; `subprocess` calls it from Python 3.2 to 3.14 at least."""
        pid = ask(self.wish, self.streams) if self.wish else 0
        if not pid:
            return super()._execute_child(*args)  # type: ignore[misc, no-any-return]
        self.pid = pid
        self._child_created = True


def use_server(server: socket.socket | None) -> None:
    """Ask this fork server from now on."""
    Popen.server, Popen.owner = server, os.getpid()
    if server is not None:
        server.settimeout(ANSWER_SECONDS)


def ask(wish: Mapping[str, Any], streams: Sequence[int]) -> int:
    """The pid of a new child of this process; 0 where it must start cold, and why in the log."""
    server, why = Popen.server, "the fork server has ended, or does not answer"
    if server is None:
        return 0
    Popen.server = None  # until it has answered: whatever is raised here, nobody reads on there
    with contextlib.suppress(OSError, EOFError):
        while not Popen.is_greeted:  # until then it imports
            greeting = receive(server)[0]
            Popen.is_greeted = "ready" in greeting
            if "cold" in greeting:
                return refuse(greeting["cold"])
        if not prctl(PR_SET_CHILD_SUBREAPER, 1):  # its parent ends at once and leaves it to us
            return refuse("this kernel lets no process adopt others")
        try:
            send(server, wish, streams)
            answer = receive(server)[0]
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
        Popen.server = server
        if "pid" in answer and is_child(answer["pid"]):
            return int(answer["pid"])
        why = answer.get("cold", "its process went to another parent")
    return refuse(why)


def refuse(why: str) -> int:
    """Say once why a process starts cold; its pid is not known yet."""
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
