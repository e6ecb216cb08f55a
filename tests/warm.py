"""Forks `python -m ddpjob …`, and the operator, from a process that has imported all they need.

To import that costs one to three core-seconds, and tests start hundreds. The agent's fork server
(ddpjob_agent.warm) makes them: children of the process that asks, as others are.
"""

import atexit
import contextlib
import importlib
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddpjob_agent.requests import python_words, request
from ddpjob_agent.warm.forked import Program, become, thaw
from ddpjob_agent.warm.forkserver import ForkServer, count_threads, importing
from ddpjob_agent.warm.popen import Popen as Asking
from ddpjob_agent.warm.popen import ask, use_server
from ddpjob_agent.warm.scripts import differing
from tests.cluster.tiers import ROOT

PATHS = f"{ROOT / 'operator'}:{ROOT / 'images' / 'trainer'}"
PROGRAMS = ("ddpjob", "ddpjob.handlers")
# What they import late, and what the second one does.
MODULES = ("kopf", "kubernetes.stream.ws_client", "rich.live", "rich.progress", "rich.table")
# What Python sets itself, as it starts without LANG.
COERCED = "LC_CTYPE"
# An operator with a clock of its own is another.
OTHER_PATHS = "PYTHONPATH is not as it was when ddpjob was imported"

# With the buffers that Python gives them: that of the second is a line in a terminal.
STREAMS = (("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1))


class Popen(subprocess.Popen[Any]):
    """A process as `subprocess` makes it; while `forking` lasts, one of `PROGRAMS` is forked."""

    begin: Callable[[], object] | None = None
    """Starts the fork server."""
    lock = threading.Lock()

    def _execute_child(self, *args: Any) -> None:
        """Make the process; `subprocess` calls it so from Python 3.9 to 3.14."""
        command, cwd, env, pipes = list(args[0]), args[5], args[6] or os.environ, args[10:16]
        streams = [max(file, number) for number, file in enumerate((pipes[0], pipes[3], pipes[5]))]
        words = [[sys.executable, "-m", program] for program in PROGRAMS]
        wish = request(command, env, os.path.abspath(cwd or "."), new_session=args[21])
        with Popen.lock:
            begin = Popen.begin if command[:3] in words else None
            if begin is not None and Asking.server is None:
                begin()
            pid = ask(wish, streams) if begin is not None else 0
        if not pid:
            return super()._execute_child(*args)  # type: ignore[misc, no-any-return]
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return None


def plain() -> dict[str, str]:
    """The environment in which the programs run, and in which their modules are imported."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": PATHS}


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """A block in which `Popen` forks, from a process that begins with the first one.

    Raises AssertionError where something was started cold.
    """
    Asking.refusals = set()
    with contextlib.ExitStack() as stack:
        Popen.begin = lambda: stack.enter_context(served())
        try:
            yield
        finally:
            Popen.begin = None
    assert Asking.refusals <= {OTHER_PATHS}, Asking.refusals


@contextlib.contextmanager
def served() -> Iterator[None]:
    """A block with a fork server."""
    ours, theirs = socket.socketpair()
    command, keeps = [sys.executable, "-m", __name__, str(theirs.fileno())], [theirs.fileno()]
    null = subprocess.DEVNULL
    server = subprocess.Popen(
        command, env=plain(), cwd=ROOT, pass_fds=keeps, stdin=null, stdout=null
    )
    with ours, server:
        theirs.close()
        Asking.is_greeted = False
        use_server(ours)
        try:
            yield
        finally:
            use_server(None)
            server.kill()


class Server(ForkServer):
    """Looks at the environment alone: it knows its programs."""

    def why_cold(self, wish: Mapping[str, Any]) -> str:
        """Why a process must be started cold, or ""."""
        name = differing(self.env, wish["env"])
        return name and f"{name} is not as it was when ddpjob was imported"


def load() -> None:
    """Import all that the programs will import, but for themselves."""
    import ddpjob

    for found in pkgutil.walk_packages(ddpjob.__path__, "ddpjob."):
        if found.name not in (*PROGRAMS, "ddpjob.__main__"):
            importlib.import_module(found.name)
    for name in MODULES:
        importlib.import_module(name)


def serve(connection: socket.socket) -> Program:
    """Be the fork server. Returns in forked processes alone, with what they are to run."""
    del sys.path[0]  # this repository
    server = Server(connection, None, {n: v for n, v in os.environ.items() if n != COERCED})
    with importing():
        load()
    server.greet("" if count_threads() == 1 else "an import has started threads")
    forked = server.serve()
    become(forked)
    for number, (name, mode, buffering) in enumerate(STREAMS):
        how = getattr(sys, name).errors
        made = open(number, mode, buffering, "utf-8", how, closefd=False)  # noqa: SIM115
        setattr(sys, name, made)
    return Program(python_words(forked.wish["command"]))


def leave(code: int) -> None:
    """End as the interpreter does, without taking its modules apart, which takes 0.3 s.

    So nothing is said of what was left open.
    """
    atexit.unregister(thaw)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        program.run_module(program.module)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        leave(end.code)
