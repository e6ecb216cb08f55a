"""Runs at the start of every Python process of a pod, as `sitecustomize` on PYTHONPATH.

It counts optimizer steps, records the first uncaught exception, answers the agent's signal with the
stacks of its threads, and runs the `sitecustomize` that it hides. What it finds goes to small JSON
files in DDPJOB_RUN_DIR, which the agent reads. It never raises and never imports torch; standard
library only, Python 3.8 or newer.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # as in typing, whose import would cost every process 5 ms
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

OPTIMIZER_MODULE = "torch.optim.optimizer"
WRITE_SECONDS = 1.0  # between two writes of a process's step count
MEMORY_FILE = "ddpjob-stacks"  # as in agent_stacks.py
RESERVE_BYTES = 8 * 2**20  # what a record takes at most, json and traceback imported for it
TEXT_CHARS = 4000  # kept of a message and of a traceback; the summary has room for less


def write_json(path: str, content: dict[str, Any]) -> None:
    """Replace `path` in one step, so that a reader never sees half a file."""
    import json  # not paid by processes that have nothing to report

    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def ranks() -> dict[str, int | None]:
    """This process's ranks; unknown without LOCAL_RANK, since RANK may be the node's then."""
    values = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK")]
    known = all(value.isdigit() for value in values)
    return {
        "rank": int(values[0]) if known else None,
        "local_rank": int(values[1]) if known else None,
    }


class StepCounter:
    """Counts optimizer steps; of several optimizers it shows the one that stepped most often."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.forget()

    def forget(self) -> None:
        """Begin at 0; also in a forked child, whose parent's steps are not its own."""
        self.counts: dict[int, int] = {}
        self.step = 0
        self.written = 0
        self.due = 0.0  # monotonic

    def __call__(self, optimizer: object, args: object, kwargs: object) -> None:
        """Torch calls this after each optimizer step; it takes some 0.2 µs."""
        key = id(optimizer)
        count = self.counts[key] = self.counts.get(key, 0) + 1
        if count > self.step:
            self.step = count
            now = time.monotonic()
            if now >= self.due:
                self.due = now + WRITE_SECONDS
                self.write()

    def write(self) -> None:
        """Write the count if it has changed. A full disk stops the writing, not the training."""
        if self.step == self.written:
            return
        self.written = self.step
        path = os.path.join(self.folder, f"steps-{os.getpid()}.json")
        try:
            write_json(path, {"step": self.step, **ranks()})
        except Exception:
            self.due = float("inf")


class OptimizerFinder:
    """Waits on `sys.meta_path` until the script imports torch's optimizers; then it is gone."""

    def __init__(self, counter: StepCounter) -> None:
        self.counter = counter

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The optimizer module's own spec, its loader wrapped; None for every other module."""
        if name != OPTIMIZER_MODULE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.wrap(spec.loader)
                return spec
        return None

    def wrap(self, loader: Any) -> None:
        """Let `loader` register the counter once it has run the module."""
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is not None:  # torch before 2.0 has none: no counted steps
                register(self.counter)

        loader.exec_module = exec_module


class ErrorRecorder:
    """Writes the first uncaught exception of this process: when, what, where."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.done = False
        self.next_hook = sys.excepthook
        self.exit_hook = sys.exit
        self.said: dict[str, Any] = {}
        # For the record of a script that has used up what it may: a descriptor, and memory, which
        # is only address space until it is touched.
        self.spare = os.open(os.devnull, os.O_RDONLY)
        self.reserve = bytes(RESERVE_BYTES)

    def excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """`sys.excepthook`; the one before it prints."""
        self.record(error)
        self.next_hook(kind, error, trace)

    def at_exit(self) -> None:
        """Catch up where a library (rich, for one) has put its own hook in the place of ours."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.record(error)
        elif self.said and not self.done:
            try:
                write_json(os.path.join(self.folder, f"exit-{os.getpid()}.json"), self.said)
            except Exception as problem:
                print(f"ddpjob: last words not recorded: {problem!r}", file=sys.stderr)

    def exit(self, status: str | int | None = None) -> None:
        """`sys.exit`, which remembers what is said with it: no hook sees a SystemExit.

        At the end it is written, and the agent believes it if the process ended with that code.
        """
        try:
            self.said = last_words(status)
        finally:
            self.exit_hook(status)

    def record(self, error: BaseException) -> None:
        """Write the record, once. Whatever goes wrong here must not hide the script's failure."""
        if self.done:
            return
        self.done = True
        try:
            os.close(self.spare)
            self.reserve = b""
            try:
                self.write(error)
            except Exception as problem:  # torch's handler of SIGCHLD raises wherever it comes
                self.write(error, then=problem)
        except Exception as problem:
            print(f"ddpjob: exception not recorded: {problem!r}", file=sys.stderr)

    def write(self, error: BaseException, then: Exception | None = None) -> None:
        """Write the record; `then`: what came up while it was written before."""
        import traceback

        kind, text = type(error), str(error)
        if then is not None:
            text += f" (then {type(then).__name__}: {then})"
        if "Traceback (most recent call last)" in text:  # of another process: the end matters
            text = text[-TEXT_CHARS:]
        trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        content: dict[str, Any] = {
            "time": time.time(),
            "pid": os.getpid(),
            **ranks(),
            "type": kind.__name__,
            "message": text[:TEXT_CHARS],
            "traceback": trace[-TEXT_CHARS:],
        }
        if kind.__name__ == "ChildFailedError":  # torchrun, started by the user's own command
            content["failures"] = [
                {"rank": rank, "local_rank": f.local_rank, "pid": f.pid, "exitcode": f.exitcode}
                for rank, f in getattr(error, "failures", {}).items()
            ]
        write_json(os.path.join(self.folder, f"error-{os.getpid()}.json"), content)


def last_words(status: object) -> dict[str, Any]:
    """What a call of `sys.exit` with `status` says: its code, its words, and which module called.

    The words are those of argparse, which prints them itself, or the status where it is a text, or
    the exception that is being handled, as in click. Empty where nothing is said.
    """
    if status is None or status == 0:
        return {}
    caller = sys._getframe(2)  # beyond ErrorRecorder.exit
    by, error = str(caller.f_globals.get("__name__")), sys.exc_info()[1]
    code, words = (status, "") if isinstance(status, int) else (1, str(status))
    if by == "argparse":
        words = str(caller.f_locals.get("message") or "")
    elif not words and error is not None and not isinstance(error, SystemExit):
        words = f"{type(error).__name__}: {error}"
    return {"code": code, "message": words.strip()[:TEXT_CHARS], "by": by} if words else {}


def answer_with_stacks(signal_number: int) -> None:
    """Write the stacks of all threads to a memory file whenever this signal comes.

    It goes with the process, so nothing is left of thousands of short ones. A forked child gets a
    file of its own in the place of its parent's.
    """
    import faulthandler

    descriptor = os.memfd_create(MEMORY_FILE)
    faulthandler.register(signal_number, file=descriptor, all_threads=True)

    def renew() -> None:
        own = os.memfd_create(MEMORY_FILE)
        os.dup2(own, descriptor, inheritable=False)
        os.close(own)

    os.register_at_fork(after_in_child=renew)


def run_next_sitecustomize() -> None:
    """Run the `sitecustomize` that this one hides: Debian, conda and some images ship theirs."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", rest)
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
    recorder = ErrorRecorder(folder)
    sys.excepthook = recorder.excepthook
    sys.exit = recorder.exit  # type: ignore[assignment]
    atexit.register(recorder.at_exit)
    if hasattr(os, "memfd_create") and os.environ.get("DDPJOB_STACK_SIGNAL", "").isdigit():
        answer_with_stacks(int(os.environ["DDPJOB_STACK_SIGNAL"]))
    if os.environ.get("DDPJOB_PROGRESS") != "file" or os.environ.get("DDPJOB_HANG_SECONDS"):
        counter = StepCounter(folder)
        sys.meta_path.insert(0, OptimizerFinder(counter))
        atexit.register(counter.write)
        os.register_at_fork(after_in_child=counter.forget)


if __name__ == "sitecustomize":
    for part in (install, run_next_sitecustomize):
        try:
            part()
        except Exception as problem:
            print(f"ddpjob: {part.__name__}: {problem!r}", file=sys.stderr)
