"""Runs at the start of every Python process of a pod, as `sitecustomize` on PYTHONPATH.

It has optimizer steps counted and the process's end recorded, answers the agent's signal with the
stacks of its threads, and runs the `sitecustomize` that it hides. What is found goes to small files
in DDPJOB_RUN_DIR, which the agent reads. It never raises and never imports torch; standard
library only, Python 3.8 or newer.

The folder is one in which the agent has compiled these files, else one in its zip.
"""

from __future__ import annotations

import atexit
import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader  # importlib's cost 0.5 ms

# The agent's zip has neither of these: to import `typing` would cost every process 5 ms.
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - Python 3.8
from zipimport import zipimporter

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OPTIMIZER_MODULE = "torch.optim.optimizer"
# The same as in stacks.py.
MEMORY_FILE = "ddpjob-stacks"
# The names that ddpjob_ends.py defines.
ENDS: dict[str, Any] = {}
FOLDER = os.path.dirname(os.path.abspath(__file__))


def beside(name: str) -> dict[str, Any]:
    """The names that module `name` beside this one defines. `sys.path` is the script's."""
    path = os.path.join(FOLDER, f"{name}.py")
    loader: Any = SourceFileLoader(name, path) if os.path.exists(path) else zipimporter(FOLDER)
    content: dict[str, Any] = {"__name__": name, "__file__": path}
    exec(loader.get_code(name), content)
    return content


class ModuleFinder:
    """Waits on `sys.meta_path` until the script imports a module, then calls `act` with it, once.

    As a finder it gives out the module's own spec, whose loader it wraps.
    """

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name, self.act = name, act

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec; None for every other module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.wrap(spec.loader)
                return spec
        return None

    def wrap(self, loader: Any) -> None:
        """Let `loader` act once it has run the module."""
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            try:
                self.act(module)
            except Exception as problem:
                print(f"ddpjob: {self.name}: {problem!r}", file=sys.stderr)

        loader.exec_module = exec_module


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with the module `name` as soon as there is one."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, ModuleFinder(name, act))


def write_to_own_pipes(folder: str) -> None:
    """Have a rank write to its own pipes, of which the agent copies whole lines.

    Only in the place of the pod's streams: the script's own files and pipes stay what they are.
    """
    rank, streams = os.environ.get("LOCAL_RANK", ""), os.environ["DDPJOB_OUTPUT"].split(",")
    for number in (1, 2) if rank.isdigit() else ():
        try:
            file = os.fstat(number)
            stream = streams.index(f"{file.st_dev}:{file.st_ino}") + 1
            path = os.path.join(folder, "output", f"{rank}.{stream}")
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # it waits for nobody to read
        except (OSError, ValueError):
            continue
        os.set_blocking(pipe, True)
        os.dup2(pipe, number)
        os.close(pipe)


def new_memory_file() -> int:
    """A new memory file. It is appended to, so that its reader may empty it between two answers.

    By opening it again, because to import `fcntl` costs more.
    """
    file = os.memfd_create(MEMORY_FILE)
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_APPEND)
    finally:
        os.close(file)


def answer_with_stacks(signal_number: int) -> None:
    """Write the stacks of all threads to a memory file whenever this signal comes.

    It goes with the process, so nothing is left of thousands of short ones. A forked child gets a
    file of its own in the place of its parent's. Where the script has closed it the agent finds
    none and asks no more: its number may be of a file of the script by now.
    """
    import faulthandler

    try:
        descriptor = new_memory_file()
    except OSError:  # a seccomp profile refuses it
        return
    faulthandler.register(signal_number, file=descriptor, all_threads=True)

    def renew() -> None:
        try:
            if MEMORY_FILE in os.readlink(f"/proc/self/fd/{descriptor}"):
                own = new_memory_file()
                os.dup2(own, descriptor, inheritable=False)
                os.close(own)
        except OSError:
            pass

    os.register_at_fork(after_in_child=renew)


def count_steps(folder: str, recorder: Any) -> None:
    """Count optimizer steps from the moment in which the script imports torch's optimizers."""

    def register(module: ModuleType) -> None:
        # torch before 2.0 has no such hooks: no counted steps
        hook = getattr(module, "register_optimizer_step_post_hook", None)
        if hook is not None:
            ranks = ENDS["ranks"]()
            counter = beside("ddpjob_counts")["StepCounter"](folder, ranks)
            recorder.steps = lambda: counter.step
            os.register_at_fork(after_in_child=counter.forget)
            hook(counter.after_step)

    when_imported(OPTIMIZER_MODULE, register)


def save_on_notice() -> None:
    """Have transformers' Trainer and Accelerate save on notice, once the script imports them."""

    def act(name: str) -> Callable[[ModuleType], None]:
        return lambda module: beside("ddpjob_saves")[name](module)

    when_imported("transformers.trainer", act("give_trainer"))
    when_imported("accelerate.accelerator", act("give_accelerator"))


def run_next_sitecustomize() -> None:
    """Run the `sitecustomize` that this one hides: Debian, conda and some images ship theirs."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def install() -> None:
    """Put the hooks in place, unless this process is the launcher itself or belongs to no pod."""
    folder = os.environ.get("DDPJOB_RUN_DIR")
    if not folder or "DDPJOB_LAUNCHER" in os.environ:
        return
    if "DDPJOB_OUTPUT" in os.environ:
        write_to_own_pipes(folder)
    ENDS.update(beside("ddpjob_ends"))
    recorder = ENDS["ErrorRecorder"](folder)
    sys.excepthook, sys.exit, os._exit = recorder.excepthook, recorder.exit, recorder.os_exit
    atexit.register(recorder.at_exit)
    os.register_at_fork(after_in_child=recorder.forget)
    when_imported("traceback", recorder.watch_tracebacks)
    if hasattr(sys.stderr, "write"):
        recorder.stderr.watch(sys.stderr)
    if hasattr(os, "memfd_create") and os.environ.get("DDPJOB_STACK_SIGNAL", "").isdigit():
        answer_with_stacks(int(os.environ["DDPJOB_STACK_SIGNAL"]))
    if os.environ.get("DDPJOB_PROGRESS") != "file" or os.environ.get("DDPJOB_HANG_SECONDS"):
        count_steps(folder, recorder)
    if os.environ.get("DDPJOB_SAVE_ON_NOTICE") != "0" and "RANK" in os.environ:
        save_on_notice()


if __name__ == "sitecustomize":
    for part in (install, run_next_sitecustomize):
        try:
            part()
        except Exception as problem:
            print(f"ddpjob: {part.__name__}: {problem!r}", file=sys.stderr)
