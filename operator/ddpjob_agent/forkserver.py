"""The fork server: imports torch once, then forks each process that it is asked for.

`agent.pyz forkserver DESCRIPTOR MODULES…`, started by the agent, which has the other end of the
socket. It first says why it cannot serve, or nothing; then answers each request with a pid, or
with the reason why the process must start cold. It stays as the imports have left it: one thread,
no device, no lock held.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.environment import PROGRAM
from ddpjob_agent.scripts import why_cold
from ddpjob_agent.warm import differing, python_words, receive, send

# torch.optim imports torch._dynamo with the first optimizer; it takes as long as torch itself.
MODULES = ("torch.distributed.run", "torch._dynamo")


@dataclass(frozen=True)
class Forked:
    """What a process that was just forked is to be."""

    wish: Mapping[str, Any]
    """The message of `warm.request`."""
    files: Sequence[int]
    """What becomes of its standard streams."""
    dies_with_parent: bool
    server: socket.socket | None = None
    """A launcher's own fork server."""
    server_env: Mapping[str, str] = field(default_factory=dict)


class ForkServer:
    """Answers those that ask on `connection`; `env` is what was read as modules were imported."""

    def __init__(self, connection: socket.socket, env: Mapping[str, str]) -> None:
        self.connection, self.env = connection, env
        self.is_first = True

    def serve(self) -> Forked:
        """Serve until nobody is left to ask, then end the process. Returns in forked ones alone."""
        while True:
            try:
                wish, files = receive(self.connection)
            except EOFError:
                os._exit(0)
            why = self.why_cold(wish)
            if why:
                send(self.connection, {"cold": why})
            elif not self.fork():
                return self.begin(wish, files)
            for number in files:
                os.close(number)

    def why_cold(self, wish: Mapping[str, Any]) -> str:
        """Why a process must be started cold, or ""."""
        if is_launcher(wish["command"]):
            return ""  # its workers are looked at when it asks for them
        name = differing(self.env, wish["env"])
        if name:
            return f"{name} is not as it was when torch was imported"
        return why_cold(python_words(wish["command"]), wish["cwd"])

    def fork(self) -> bool:
        """Fork a process that is no child of this one, and say its pid; False in that process.

        The process between ends at once, so the new one goes to whoever asked: the nearest above
        that adopts orphans. It begins when that has happened, and its pid is on its way.
        """
        told, tell = os.pipe()
        begun, begin = os.pipe()
        pid = 0
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                orphan = -1
                try:
                    orphan = os.fork()
                    if orphan:
                        os.write(tell, str(orphan).encode())
                finally:
                    if orphan:
                        os._exit(0)
                for number in (told, tell, begin):
                    os.close(number)
                if not os.read(begun, 1):
                    os._exit(1)
                os.close(begun)
                return False
        os.close(tell)
        text = os.read(told, 32)
        if pid:
            os.waitpid(pid, 0)
        send(self.connection, {"pid": int(text)} if text else {"cold": "no process can be forked"})
        if text:
            os.write(begin, b"1")
        for number in (told, begun, begin):
            os.close(number)
        return True

    def begin(self, wish: Mapping[str, Any], files: Sequence[int]) -> Forked:
        """What this process, just forked, is to be; a launcher's fork server goes on serving."""
        is_first = self.is_first
        self.connection.close()
        if not is_launcher(wish["command"]):
            return Forked(wish, files, is_first)
        ours, theirs = socket.socketpair()
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                ours.close()
                for number in files:
                    os.close(number)
                self.connection, self.is_first = theirs, False
                return self.serve()
        theirs.close()
        return Forked(wish, files, is_first, ours, self.env)


def is_launcher(command: Sequence[str]) -> bool:
    """Whether a command starts workers: torchrun in a function of ours, or `accelerate launch`."""
    words = python_words(command)
    return list(command[2:4]) == [PROGRAM, "launch"] or words[1:2] == ["accelerate.commands.launch"]


def load(modules: Sequence[str]) -> str:
    """Import all that takes time. Why no process can be forked after that, or ""."""
    before = descriptors()
    try:
        torch: Any = importlib.import_module("torch")
        for name in modules:
            importlib.import_module(name)
        for name in MODULES:
            with contextlib.suppress(ImportError):  # torch below 2.0 has no dynamo
                importlib.import_module(name)
        # Whatever the first optimizer imports.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    except (Exception, SystemExit) as problem:
        return f"{type(problem).__name__}: {problem}"
    if torch.cuda.is_initialized():
        return "an import has initialised CUDA"
    opened = descriptors() - before
    if opened:
        return f"an import has opened {', '.join(sorted(opened))}"
    # OpenBLAS ends its threads before a fork. Whoever does not, is not made for it.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"an import has started {threads - 1} threads" if threads > 1 else ""


def descriptors() -> set[str]:
    """What stands behind this process's descriptors."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the folder itself: closed by now
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def run(descriptor: int, modules: Sequence[str]) -> Forked:
    """Import and serve; returns in forked processes alone."""
    env = dict(os.environ)  # before a module changes it
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    gc.disable()  # imports leave little to collect, and to look for it takes a fifth of their time
    problem = load(modules)
    sys.stdout.flush()
    gc.freeze()  # to look at what is there now would copy its pages, in each process
    gc.enable()
    send(connection, {"cold": problem} if problem else {})
    if problem:
        os._exit(0)
    return ForkServer(connection, env).serve()
