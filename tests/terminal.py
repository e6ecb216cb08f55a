"""Runs `ddpjob …` as people do: in a terminal of a given size, or with its output in pipes."""

import os
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.waiting import wait_for
from tests.warm import Popen, plain

COMMAND = (sys.executable, "-m", "ddpjob")
# What moves a cursor, sets a colour or a title.
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")
SECONDS = 200.0


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


def environment(kubeconfig: Path | None = None, **more: str) -> dict[str, str]:
    """The environment of a user whose only cluster is that of the kubeconfig."""
    return {
        **plain(),
        "KUBECONFIG": str(kubeconfig or "/nonexistent/kubeconfig"),
        "TERM": "xterm-256color",
        **more,
    }


def ddpjob(*arguments: str, env: Mapping[str, str], **options: Any) -> Ended:
    """Run the command, as `python` does."""
    return python("-m", "ddpjob", *arguments, env=env, **options)


def python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    cwd: Path | None = None,
    seconds: float = SECONDS,
    merged: bool = False,
) -> Ended:
    """Run this Python with its output in pipes, or, with `merged`, in one pipe, as it comes."""
    with Popen(
        [sys.executable, *arguments],
        env=env,
        cwd=cwd,
        stdin=None if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=seconds)
        except BaseException:
            process.kill()
            raise
    return Ended(process.returncode, out, err or "")


class _Output:
    """What is written at the other end of a descriptor, read in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._parts = descriptor, list[bytes]()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode(errors="replace")

    def join(self) -> None:
        """Wait until all is read."""
        self._thread.join(timeout=SECONDS)

    def _read(self) -> None:
        with suppress(OSError):  # so Linux ends a terminal: nobody has the other side open
            while part := os.read(self._descriptor, 65536):
                self._parts.append(part)


class Running:
    """`ddpjob …` while it runs, with its output in pipes. A context manager."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.process = Popen(
            [*COMMAND, *arguments],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout and self.process.stderr
        self._streams = (self.process.stdout, self.process.stderr)
        self._out, self._err = (_Output(stream.fileno()) for stream in self._streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()
        for stream in self._streams:
            stream.close()

    @property
    def out(self) -> str:
        return self._out.text

    @property
    def err(self) -> str:
        return self._err.text

    def until(self, text: str) -> None:
        """Wait until this text is in what it has printed. Raises TimeoutError."""
        wait_for(lambda: text in self.out + self.err, lambda: f"{text!r} in {self.out}{self.err}")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Ended:
        """Wait for its end."""
        code = self.process.wait(timeout=SECONDS)
        self._out.join()
        self._err.join()
        return Ended(code, self.out, self.err)


class Terminal:
    """`ddpjob …` in a pseudo-terminal. A context manager."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        cwd: Path | None = None,
        columns: int = 110,
        rows: int = 30,
    ) -> None:
        self._descriptor, self._other = os.openpty()
        termios.tcsetwinsize(self._other, (rows, columns))
        # A session's leader gets the terminal that it opens first, and so what Ctrl-C sends.
        script = 'exec <"$0" >"$0" 2>&1; exec "$@"'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, os.ttyname(self._other), *COMMAND, *arguments],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._output = _Output(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    @property
    def raw(self) -> str:
        """All that was printed, escape sequences included."""
        return self._output.text

    @property
    def text(self) -> str:
        """All that was printed, in its order, without escape sequences."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def until(self, text: str) -> None:
        """Wait until this text is in what it has printed. Raises TimeoutError."""
        wait_for(lambda: text in self.text, lambda: f"{text!r} in {self.text}")

    def type(self, text: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self._descriptor, text.encode())

    def end(self) -> Ended:
        """Wait for its end. A terminal has one stream, so `err` is empty."""
        code = self.process.wait(timeout=SECONDS)
        self._close()
        return Ended(code, self.text, "")

    def _close(self) -> None:
        """Close both sides, once all that was printed is read."""
        if self._other >= 0:
            os.close(self._other)
            self._other = -1
            self._output.join()
            os.close(self._descriptor)
