"""Makes a forked process what a fresh one would be, for whoever looks and for its script."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import runpy
import socket
import sys
import threading
import types
from importlib.machinery import SourceFileLoader
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8
from zipimport import zipimporter

from ddpjob_agent.config import say
from ddpjob_agent.environment import PROGRAM
from ddpjob_agent.processes import end_with
from ddpjob_agent.requests import python_words
from ddpjob_agent.warm.forkserver import Forked, serve, serve_beside
from ddpjob_agent.warm.launch import launch_torchrun
from ddpjob_agent.warm.popen import Popen, replace_popen, use_server
from ddpjob_agent.warm.title import show_words

# torch's seed in each process, unless it takes one from the system: 2.15 does (c10's Generator.h).
TORCH_SEED = 67280421310721


class Program:
    """What a process is to run, as `python SCRIPT …` or `python -m MODULE …` would."""

    def __init__(self, words: Sequence[str]) -> None:
        self.module = words[1] if words[0] == "-m" else ""
        self.script = "" if self.module else words[0]
        self.run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
        # Python takes -m as the program's name until it has found the module.
        sys.argv = ["-m", *words[2:]] if self.module else list(words)
        folder = os.path.dirname(os.path.realpath(self.script)) if self.script else os.getcwd()
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, folder)
        main = types.ModuleType("__main__")
        self.names: dict[str, Any] = main.__dict__
        self.names["__builtins__"] = sys.modules["builtins"]
        if sys.version_info < (3, 14):
            self.names["__annotations__"] = {}
        sys.modules["__main__"] = main
        if self.script:
            # Python makes it absolute, and leaves the rest as it was written; 3.8 all of it.
            path = os.path.join(os.getcwd(), self.script)
            path = path if sys.version_info >= (3, 9) else self.script
            loader = SourceFileLoader("__main__", path)
            self.names.update(__file__=path, __cached__=None, __loader__=loader)

    def compiled(self) -> types.CodeType:
        """The script. Raises what Python does of one that it cannot read."""
        with open(self.names["__file__"], "rb") as file:
            return compile(file.read(), self.names["__file__"], "exec", dont_inherit=True)

    def hide_frames(self) -> None:
        """Have the interpreter print the exception that ends this process without our frames."""
        hook, ours = sys.excepthook, (sys._getframe(1).f_code.co_filename, __file__)

        def place(entry: Any) -> str:
            return str(entry.tb_frame.f_code.co_filename) if entry is not None else ours[0]

        def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
            sys.excepthook = hook
            while place(trace) not in ours:  # runpy's, which runs the zip
                trace = trace.tb_next
            while trace is not None and place(trace) in ours:
                trace = trace.tb_next
            error.__traceback__ = sys.last_traceback = trace
            hook(kind, error, trace)

        sys.excepthook = excepthook


def serve_alone(descriptor: str) -> Program:
    """Be a fork server. Returns in forked processes alone, with what they are to run."""
    return start(serve(None, socket.socket(fileno=int(descriptor)), dict(os.environ)))


def launch_warm(descriptor: str, arguments: list[str]) -> Program:
    """Be torchrun, with a fork server beside it, which the agent asks at the descriptor.

    Returns in forked processes alone.
    """
    agents = socket.socket(fileno=int(descriptor))
    agents.set_inheritable(False)
    # torchrun sets it for several workers; libraries read it when torch is imported.
    is_set = "OMP_NUM_THREADS" in os.environ
    if not is_set and os.environ.get("DDPJOB_NPROC_PER_NODE", "1") != "1":
        os.environ["OMP_NUM_THREADS"] = "1"
    found, unimportable = None, None
    try:
        found = serve_beside(agents)
    except Exception as problem:
        unimportable = problem
    if isinstance(found, Forked):
        return start(found)
    agents.close()
    use_server(found)
    if not is_set:
        os.environ.pop("OMP_NUM_THREADS", None)
    launch_torchrun(arguments, unimportable)


def start(forked: Forked) -> Program:
    """Make this process what was asked for; what it is to run."""
    become(forked)
    use_server(forked.server)
    words = python_words(forked.wish["command"])
    if words[0] == PROGRAM:
        launch_torchrun(words[3:])
    if forked.server is not None:
        replace_popen(Popen)
    else:
        forget_agent()
    program = Program(words)
    install_hooks(os.environ)
    return program


def become(forked: Forked) -> None:
    """Take the place that was asked for: streams, folder, environment and words.

    And be alone with what a fresh process would have for itself.
    """
    wish = forked.wish
    if forked.dies_with_parent:
        end_with(wish["parent"])
    for number, file in enumerate(forked.files):
        os.dup2(file, number)
    for file in forked.files:
        if file > 2:
            os.close(file)
    os.environ.clear()
    os.environ.update(wish["env"])
    os.chdir(wish["cwd"])
    show_words(wish["command"], wish["env"])
    if hasattr(sys, "orig_argv"):  # Python 3.10
        sys.orig_argv = list(wish["command"])
    threading.current_thread()._set_native_id()  # type: ignore[attr-defined]  # 3.11 leaves it
    forget_own()
    atexit.register(thaw)
    importlib.invalidate_caches()  # a file may be newer than the last look at its folder


def thaw() -> None:
    """Let the interpreter's end take apart what was frozen: nanobind would call it leaked.

    What it collects before that, it has collected here; to look at all of it then takes 0.1 s.
    """
    gc.collect()
    gc.unfreeze()
    gc.disable()


def forget_agent() -> None:
    """Leave none of the agent's modules to be found by the script."""
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "__main__"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "ddpjob_agent"]:
        del sys.modules[name]


def install_hooks(env: Mapping[str, str]) -> None:
    """Run the hooks that a fresh process finds as `sitecustomize`."""
    folder = env.get("PYTHONPATH", "").split(os.pathsep)[0]
    path = os.path.join(folder, "sitecustomize.py")
    is_file = os.path.exists(path)  # else they are in the agent's zip
    loader: Any = SourceFileLoader("sitecustomize", path) if is_file else zipimporter(folder)
    names = {"__name__": "ddpjob_hooks", "__file__": path}
    try:
        exec(loader.get_code("sitecustomize"), names)
        names["install"]()  # type: ignore[operator]
    except Exception as problem:  # as there: they never keep a script from its work
        say(f"no hooks: {problem!r}")


def forget_own() -> None:
    """Have modules forget what they took from the system; `random` does so after each fork."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # a script may set TMPDIR
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None and torch.initial_seed() != TORCH_SEED:
        torch.default_generator.seed()  # of the CPU; a GPU has none yet
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
