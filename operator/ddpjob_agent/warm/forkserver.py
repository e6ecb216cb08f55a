"""The fork server: has torch imported, and forks each process that it is asked for.

torchrun forks one from itself before it begins, so that one import of torch does for both, and the
rest is imported while the nodes meet; the agent asks the same one in later rounds. For other
commands the agent starts one, as `agent.pyz forkserver DESCRIPTOR`. A launcher that is forked from
one has one beside it, too. It says who it is, then that it can serve, or why it cannot; then it
answers each request with a pid, or with the reason why the process must start cold. It stays as the
imports have left it: one thread, no device, no lock held.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import say
from ddpjob_agent.environment import ACCELERATE, PROGRAM
from ddpjob_agent.requests import python_words, receive, send
from ddpjob_agent.warm.scripts import differing, why_cold
from ddpjob_agent.warm.title import show_words


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


class ForkServer:
    """Answers launchers on `connection`, and the agent on `agents`, while either is there.

    `env` is what was read as modules were imported.
    """

    def __init__(
        self,
        connection: socket.socket | None,
        agents: socket.socket | None,
        env: Mapping[str, str],
    ) -> None:
        self.agents, self.env = agents, env
        self.connections = [each for each in (connection, agents) if each is not None]
        for each in self.connections:
            each.set_inheritable(False)
        self.tell({"server": os.getpid()})
        # Of scripts that were looked at, by their words and folder.
        self.refusals: dict[tuple[str, ...], str] = {}

    def tell(self, message: Mapping[str, Any]) -> None:
        """Tell all that may ask."""
        for each in self.connections:
            with contextlib.suppress(OSError):
                send(each, message)

    def greet(self, problem: str) -> None:
        """Say that it can serve, or why it cannot, and end then."""
        self.tell({"cold": problem} if problem else {"ready": True})
        if problem:
            os._exit(0)

    def serve(self) -> Forked:
        """Serve until nobody is left to ask, then end the process. Returns in forked ones alone."""
        while self.connections:
            for connection in select.select(self.connections, [], [])[0]:
                is_server = True
                try:
                    wish, files = receive(connection)
                    why = self.why_cold(wish)
                    if why:
                        send(connection, {"cold": why})
                    else:
                        is_server = self.fork(connection, wish)
                except (EOFError, OSError):
                    self.connections.remove(connection)
                    connection.close()  # who is forked later is not to have it
                    continue
                if not is_server:
                    return self.begin(wish, files, is_agents=connection is self.agents)
                for number in files:
                    os.close(number)
        os._exit(0)

    def why_cold(self, wish: Mapping[str, Any]) -> str:
        """Why a process must be started cold, or ""."""
        words = python_words(wish["command"])
        if is_launcher(words):
            return ""  # its workers are looked at when it asks for them
        name = differing(self.env, wish["env"])
        if name:
            return f"{name} is not as it was when torch was imported"
        key = wish["cwd"], *words[: 1 + (words[0] == "-m")]
        if key not in self.refusals:
            self.refusals[key] = why_cold(words, wish["cwd"], self.env)
        return self.refusals[key]

    def fork(self, connection: socket.socket, wish: Mapping[str, Any]) -> bool:
        """Fork a process that is no child of this one, and say its pid; False in that process.

        The process between ends at once, so the new one goes to whoever asked: the nearest above
        that adopts orphans. It begins when that has happened, and its pid is on its way.
        """
        told, tell = os.pipe()
        begun, begin = os.pipe()
        pid = fork_once()
        if pid == 0:
            if fork_once():
                os._exit(0)
            if wish["new_session"]:  # before its group can be signalled
                os.setsid()
            os.write(tell, str(os.getpid()).encode())
            for number in (told, tell, begin):
                os.close(number)
            if not os.read(begun, 1) or os.getppid() != wish["parent"]:
                os._exit(1)
            os.close(begun)
            return False
        os.close(tell)
        try:
            text = os.read(told, 32)
            if pid > 0:
                os.waitpid(pid, 0)
            answer = {"pid": int(text)} if text else {"cold": "no process can be forked"}
            send(connection, answer)
            os.write(begin, b"1")
        finally:
            for number in (told, begun, begin):
                os.close(number)
        return True

    def begin(self, wish: Mapping[str, Any], files: Sequence[int], *, is_agents: bool) -> Forked:
        """What this process, just forked, is to be; a launcher's fork server goes on serving."""
        for connection in self.connections:
            connection.close()
        if not is_launcher(python_words(wish["command"])):
            return Forked(wish, files, is_agents)
        ours, theirs = socket.socketpair()
        if fork_once() == 0:
            ours.close()
            for number in files:
                os.close(number)
            server = ForkServer(theirs, None, self.env)
            server.greet("")
            return server.serve()
        theirs.close()
        return Forked(wish, files, is_agents, ours)


def fork_once() -> int:
    """`os.fork`; -1 where no process can be made."""
    try:
        return os.fork()
    except OSError:
        return -1


def is_launcher(words: Sequence[str]) -> bool:
    """Whether `[-m, MODULE, …]` or `[SCRIPT, …]` starts workers: accelerate, and our torchrun."""
    return list(words[:2]) in (["-m", ACCELERATE], [PROGRAM, "launch"])


def load() -> str:
    """Import all that ranks will import, and what the job names. Why it cannot be had, or ""."""
    modules = os.environ.get("DDPJOB_WARM_MODULES", "").split(",")
    try:
        torch: Any = importlib.import_module("torch")
        for name in filter(None, modules):
            importlib.import_module(name)
        for name in ("torch.distributed.run", "torch._dynamo"):
            with contextlib.suppress(Exception):  # torch below 2.0 has no dynamo
                importlib.import_module(name)
        # The first optimizer imports torch._dynamo, which takes as long as torch; perhaps more.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    except (Exception, SystemExit) as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def why_unsafe(before: set[str]) -> str:
    """Why this process cannot be forked after its imports, or ""; it had descriptors `before`."""
    torch: Any = importlib.import_module("torch")
    if torch.cuda.is_initialized():
        return "an import has initialised CUDA"
    opened = descriptors() - before
    if opened:
        return f"an import has opened {', '.join(sorted(opened))}"
    if count_threads() > 1:  # OpenBLAS ends its threads before a fork; others are not made for it
        pid = fork_once()
        if pid == 0:
            os._exit(0)
        if pid > 0:
            os.waitpid(pid, 0)
    for _ in range(20):  # the kernel shows a thread for a moment after its end
        if count_threads() == 1:
            return ""
        time.sleep(0.01)
    return f"an import has started {count_threads() - 1} threads"


def count_threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def descriptors() -> set[str]:
    """What stands behind this process's descriptors."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the folder itself: closed by now
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Without garbage collection: imports leave little to it, and it takes a fifth of their time.

    What is there then is looked at no more: that would copy its pages in each forked process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve(
    connection: socket.socket | None, agents: socket.socket | None, env: Mapping[str, str]
) -> Forked:
    """Import all, and serve. Returns in forked processes alone."""
    server, before = ForkServer(connection, agents, env), descriptors()
    with importing():
        problem = load() or why_unsafe(before)
    server.greet(problem)
    return server.serve()


def serve_beside(agents: socket.socket) -> socket.socket | Forked | None:
    """Import torchrun, then fork the server; returns its socket, None where none can be forked.

    `agents` is where the agent asks. Returns in the processes that it will fork, too. Raises what
    the import raises.
    """
    env = dict(os.environ)  # before a module changes it
    before = descriptors()
    with importing():
        importlib.import_module("torch.distributed.run")
    try:
        problem = why_unsafe(before)
        ours, theirs = socket.socketpair()
    except OSError as error:
        problem = str(error)
    if problem:
        say(f"cold start: {problem}")
        return None
    if fork_once():
        theirs.close()
        return ours
    try:
        ours.close()
        show_words([sys.executable, "-u", PROGRAM, "forkserver"], os.environ)
        return serve(theirs, agents, env)
    except BaseException:  # whatever it is, it must not become a second torchrun
        traceback.print_exc()
        os._exit(1)
