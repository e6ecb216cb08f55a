"""Records how a Python process ends: its first uncaught exception, or what is said as it exits.

Beside sitecustomize.py in the pod, which loads it in every process. It only records; the
agent judges. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

# The agent's zip has neither of these: to import `typing` would cost every process 5 ms.
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - Python 3.8

if TYPE_CHECKING:
    from types import FrameType, TracebackType

# A record takes so much memory at most, with json and traceback imported for it.
RESERVE_BYTES = 8 * 2**20
# So much of a message and of a traceback is kept; the termination message has room for less.
TEXT_CHARS = 4000
# So many causes of an exception are kept, and so much of each one's message.
CAUSES, CAUSE_CHARS = 5, 500
# So many printed exceptions are remembered.
PRINTED = 4
# An exception that was printed longer before the exit does not explain it.
FRESH_SECONDS = 10.0
# So much of stderr is remembered.
TAIL_CHARS = 1000
# typer and rich draw these around their sentences.
BOX = "│┃║"


def write_json(path: str, content: dict[str, Any]) -> None:
    """Replace `path` in one step, so that a reader never sees half a file."""
    import json  # not paid by processes that have nothing to report

    temporary = f"{path}.tmp"
    os.makedirs(os.path.dirname(path), exist_ok=True)  # the script may have removed it
    with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(content, file, ensure_ascii=False)
    os.replace(temporary, path)


def ranks() -> dict[str, int | None]:
    """This process's ranks; unknown without LOCAL_RANK, since RANK may be the node's then."""
    values = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK")]
    known = all(value.isdigit() for value in values)
    return {
        "rank": int(values[0]) if known else None,
        "local_rank": int(values[1]) if known else None,
    }


def program() -> str:
    """The program of this process: a module's name, or the name of a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    words = list(getattr(sys, "orig_argv", ()))  # Python 3.10
    if spec is None and sys.argv[:1] == ["-m"] and "-m" in words[:-1]:
        return str(words[words.index("-m") + 1])  # its package is being imported
    return str(getattr(spec, "name", None) or os.path.basename((sys.argv or [""])[0]))


def missing_script() -> str | None:
    """The script that Python is about to run, if there is none. Asked before it tries."""
    script = (getattr(sys, "argv", None) or [""])[0]
    return None if script in ("", "-", "-c", "-m") or os.path.exists(script) else script


def described(error: BaseException) -> dict[str, Any]:
    """Type and words of an exception, and of those that it came from: the first one last.

    The context counts also after `from None`, which is about what is printed.
    """
    causes: list[BaseException] = []
    seen, current = {id(error)}, error.__cause__ or error.__context__
    while current is not None and id(current) not in seen and len(seen) < 1000:
        seen.add(id(current))
        causes.append(current)
        current = current.__cause__ or current.__context__
    kept = causes if len(causes) <= CAUSES else [*causes[: CAUSES - 1], causes[-1]]
    return {
        "type": type(error).__name__,
        "message": str(error)[:TEXT_CHARS],
        "causes": [{"type": type(c).__name__, "message": str(c)[:CAUSE_CHARS]} for c in kept],
    }


class Stderr:
    """The last text written to `sys.stderr`, and the text that the interpreter wrote there."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child."""
        self.tail = ""
        self.at = 0.0  # monotonic
        self.words = ""
        self.is_told = False

    def watch(self, stream: Any) -> None:
        """Look on at each `write`; the stream stays what it is."""
        write: Callable[[str], int] = stream.write
        frame = sys._getframe

        def watched(text: str) -> int:
            try:
                self.tail = text[-TAIL_CHARS:] if len(text) > 200 else self.tail[-800:] + text
                self.at = time.monotonic()
                if frame().f_back is None:
                    self.hear(text)
            except Exception:
                pass  # what is no text, write refuses
            return write(text)

        stream.write = watched

    def hear(self, text: str) -> None:
        """Take what no Python code writes: the text of a SystemExit, then a line's end."""
        self.is_told = self.is_told or text == "\n"
        if not self.is_told and not self.words and not text.startswith("Exception ignored"):
            self.words = text[:TEXT_CHARS]

    def last_line(self) -> str:
        """The last line with a word in it, or box of lines, if it is fresh and no progress bar."""
        if time.monotonic() - self.at > FRESH_SECONDS:
            return ""
        told: list[str] = []
        for line in reversed(self.tail.splitlines()):
            is_boxed, words = line.strip()[:1] in BOX, line.strip(BOX + " \t")
            if told and not (is_boxed and words):
                break
            if any(c.isalnum() for c in words) and "%|" not in line:
                told.insert(0, words)
                if not is_boxed:
                    break
        return " ".join(told)


class ErrorRecorder:
    """Writes the first uncaught exception of this process, or its last words: when, what, where."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.next_hook = sys.excepthook
        self.exit_hook, self.os_exit_hook = sys.exit, os._exit
        self.steps: Callable[[], int] = lambda: 0
        self.stderr = Stderr()
        self.forget()
        # For the record of a script that has used up what it may: a descriptor, and memory, which
        # is only address space until it is touched.
        self.spare = os.open(os.devnull, os.O_RDONLY)
        self.reserve = bytes(RESERVE_BYTES)
        script = missing_script()
        if script is not None:
            self.said.update(code=2, by="python", message=f"no script {os.path.abspath(script)!r}")

    def forget(self) -> None:
        """Begin anew, in a forked child."""
        self.done = False
        self.said: dict[str, Any] = {}
        self.printed: list[tuple[float, int, dict[str, Any]]] = []
        self.main = get_ident()
        self.stderr.forget()

    def excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """`sys.excepthook`; the one before it prints."""
        self.record(error)
        self.next_hook(kind, error, trace)
        if kind is KeyboardInterrupt:
            try:
                exec("raise KeyboardInterrupt")
            except KeyboardInterrupt:
                return  # it is Python's last text, so Python ends by SIGINT: imports execute some

    def at_exit(self) -> None:
        """Catch up with what no hook was told of, and write the last words."""
        error = getattr(sys, "last_value", None)
        if self.done:  # the process ends now: what it left, if it could, is news until here
            if os.path.exists(self.path("error")):
                os.utime(self.path("error"))
        elif isinstance(error, BaseException):  # rich, for one, has put its hook in place of ours
            self.record(error)
        else:
            self.write_last_words(self.stderr.words.strip())

    def write_last_words(self, words: str) -> None:
        """Write how the process exits; `words` are those that the interpreter wrote."""
        said = self.said
        if words and said.get("by") != "python" and words != said.get("message"):
            said = {"code": 1, "message": words, "by": "SystemExit", "handled": self.fresh()}
        elif not said and self.fresh():  # perhaps `raise SystemExit(1)`: only the agent sees codes
            said = {"code": None, "message": "", "by": "", "handled": self.fresh()}
        if said:
            self.write_exit(said)

    def exit(self, status: str | int | None = None) -> None:
        """`sys.exit`, which remembers what is said with it: no hook sees a SystemExit.

        At the end it is written, and the agent believes it if the process ended with that code.
        """
        try:
            if get_ident() == self.main:  # elsewhere it ends a thread
                self.said = self.last_words(status, sys._getframe(1))
        finally:
            self.exit_hook(status)

    def os_exit(self, status: int) -> None:
        """`os._exit`, which ends the process at once: the last words go before it."""
        try:
            words = self.last_words(status, sys._getframe(1))
            if words.get("handled") or words.get("stderr"):
                self.write_exit(words)
        finally:
            self.os_exit_hook(status)

    def last_words(self, status: object, frame: FrameType | None) -> dict[str, Any]:
        """The last words of an exit with `status` in `frame`; empty for a good end.

        Its words are those of argparse, which prints them itself, or the status where it is a text.
        Beside them: the exceptions that were being handled or have just been printed, and the last
        line of stderr.
        """
        code = status & 255 if isinstance(status, int) else int(status is not None)
        if code == 0:
            return {}
        message = "" if isinstance(status, int) else str(status)
        by = asked_by = module_of(frame)
        while frame is not None and module_of(frame) == "argparse":
            message = message or str(frame.f_locals.get("message") or "")
            frame = frame.f_back
            asked_by = module_of(frame)
        error = sys.exc_info()[1]
        here = error is not None and not isinstance(error, SystemExit)
        handled = [described(error)] if here and error is not None else self.fresh()
        return {
            "code": code,
            "message": message.strip()[:TEXT_CHARS],
            "by": by,
            "asked_by": asked_by,
            "handled": handled,
            "stderr": self.stderr.last_line()[:TEXT_CHARS],
            "time": time.time(),
        }

    def watch_tracebacks(self, module: Any) -> None:
        """Remember the words of exceptions that are printed or logged, `module` being traceback."""
        begin = module.TracebackException.__init__

        def __init__(self_: Any, *args: Any, **more: Any) -> None:
            error = args[1] if len(args) > 1 else more.get("exc_value")
            if isinstance(error, BaseException) and more.get("_seen") is None:
                self.remember(error)
            begin(self_, *args, **more)

        module.TracebackException.__init__ = __init__

    def remember(self, error: BaseException) -> None:
        """Keep the words of an exception, not the exception: its frames hold tensors."""
        try:
            if not isinstance(error, SystemExit):
                entry = time.monotonic(), self.steps(), described(error)
                self.printed = [*self.printed, entry][-PRINTED:]
        except Exception:
            pass  # it cannot be printed either

    def fresh(self) -> list[dict[str, Any]]:
        """The exceptions that were printed a moment ago, and after which no step was made."""
        now, steps = time.monotonic(), self.steps()
        return [e for at, step, e in self.printed if now - at < FRESH_SECONDS and step == steps]

    def path(self, kind: str) -> str:
        """The path of this process's record."""
        return os.path.join(self.folder, f"{kind}-{os.getpid()}.json")

    def write_exit(self, words: dict[str, Any]) -> None:
        """Write the last words."""
        try:
            who = {"time": time.time(), "pid": os.getpid(), **ranks(), "program": program()}
            write_json(self.path("exit"), {**who, **words})
        except Exception as problem:
            print(f"ddpjob: last words not recorded: {problem!r}", file=sys.stderr)

    def record(self, error: BaseException) -> None:
        """Write the record, once. Whatever goes wrong here must not hide the script's failure."""
        if self.done:
            return
        self.done = True
        try:
            self.make_room()
            try:
                self.write(error)
            except Exception as problem:  # torch's handler of SIGCHLD raises wherever it comes
                self.write(error, then=problem)
        except Exception as problem:
            print(f"ddpjob: exception not recorded: {problem!r}", file=sys.stderr)

    def make_room(self) -> None:
        """Give back what was kept for the record: memory, and a descriptor that is still ours."""
        self.reserve = b""
        try:
            if os.path.samestat(os.fstat(self.spare), os.stat(os.devnull)):
                os.close(self.spare)
        except OSError:
            pass  # the script has closed it

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
            "program": program(),
            **described(error),
            "message": text[:TEXT_CHARS],
            "traceback": trace[-TEXT_CHARS:],
        }
        if isinstance(error, ImportError):
            content["missing"] = str(error.name or "")
        if kind.__name__ == "ChildFailedError":  # torchrun, started by the user's own command
            content["failures"] = [
                {"rank": rank, "local_rank": f.local_rank, "pid": f.pid, "exitcode": f.exitcode}
                for rank, f in getattr(error, "failures", {}).items()
            ]
        write_json(self.path("error"), content)


def module_of(frame: FrameType | None) -> str:
    """The name of the module whose code runs in `frame`, its own also where it is `__main__`."""
    if frame is None:
        return ""
    name = frame.f_globals.get("__name__")
    return str(getattr(frame.f_globals.get("__spec__"), "name", None) or name)
