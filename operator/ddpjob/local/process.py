"""A pod's process on this machine: started under the shim, logged, ended for certain."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ddpjob.local.launch import Launch

SHIM = Path(__file__).with_name("shim.py")
# The end of a log that a kubelet takes as the termination message.
TAIL_LINES, TAIL_BYTES = 80, 2048
# Bytes of a line, as in the kubelet. A longer line is cut for readers, but not in the file.
LONGEST_LINE = 16_384
# The time to wait for output after the end. Only a process that has left the pod can hold the pipe.
DRAIN_SECONDS = 2.0

OnLine = Callable[[str], None]


class PodProcess:
    """A running process. Made by `start`; `wait` must be awaited until it returns."""

    def __init__(self, process: asyncio.subprocess.Process, control: int, log: "_Log") -> None:
        self._process, self._control, self._log = process, control, log

    @classmethod
    async def start(
        cls, launch: Launch, *, log: Path, on_line: OnLine, notes: Sequence[str] = ()
    ) -> "PodProcess":
        """Start `launch`; `notes`, then its output, go to `log`, anew, and each line to `on_line`.

        A command that cannot be executed shows as exit code 128. Raises OSError if even the shim
        cannot be started.
        """
        control_read, control_write = os.pipe()
        output_read, output_write = os.pipe()
        reader = await _Log.open(output_read, log, on_line)
        # A job may name a folder of its own.
        temporary = "" if "TMPDIR" in launch.env else tempfile.gettempdir()
        for note in notes:
            reader.data_received(f"{note}\n".encode())
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SHIM), temporary, *launch.argv),
                stdin=control_read,
                stdout=output_write,
                stderr=output_write,
                env=launch.env,
                cwd=launch.cwd,
                start_new_session=True,  # a terminal's Ctrl-C is for ddpjob, which ends its pods
            )
        except BaseException:
            os.close(control_write)
            reader.close()
            raise
        finally:
            os.close(control_read)
            os.close(output_write)
        return cls(process, control_write, reader)

    @property
    def tail(self) -> str:
        """Return the last lines of the output, at most 2 KiB."""
        return "\n".join(self._log.tail).encode()[-TAIL_BYTES:].decode(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM to the main process alone, as a kubelet does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End everything that the pod runs, now; may be called again."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    async def wait(self) -> int:
        """Return the exit code, or minus a signal's number, when no process is left."""
        code = await self._process.wait()
        await asyncio.wait({self._log.complete}, timeout=DRAIN_SECONDS)
        self._log.close()
        self.kill()
        return code


class _Log(asyncio.Protocol):
    """Copies a pipe into a file as it comes, and hands each line to `on_line`."""

    def __init__(self, path: Path, on_line: OnLine) -> None:
        self._file = path.open("wb", buffering=0)
        self._on_line = on_line
        self._line = b""
        self._is_cut = False
        self._transport: asyncio.BaseTransport
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, pipe: int, path: Path, on_line: OnLine) -> "_Log":
        log, loop = cls(path, on_line), asyncio.get_running_loop()
        log._transport, _ = await loop.connect_read_pipe(lambda: log, os.fdopen(pipe, "rb", 0))
        return log

    def data_received(self, data: bytes) -> None:
        self._write(data)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._line) > LONGEST_LINE:
            self._emit(self._line)
            self._line = b""

    def _write(self, data: bytes) -> None:
        """Write into the file what fits; if not all does, say it once."""
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            if not self._is_cut:
                self._is_cut = True
                self._emit(f"ddpjob: the log is not complete: {error}".encode())

    def connection_lost(self, error: Exception | None) -> None:
        if self._line:
            self._emit(self._line)
        self._file.close()
        if not self.complete.done():
            self.complete.set_result(None)

    def close(self) -> None:
        self._transport.close()

    def _emit(self, line: bytes) -> None:
        """One line, or of a progress bar what it shows last."""
        text = line[:LONGEST_LINE].rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        self.tail.append(text)
        self._on_line(text)
