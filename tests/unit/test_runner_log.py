"""A pod's log on this machine: a file, and lines for whoever reads along."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from ddpjob.local.process import _Log


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux'")
async def test_a_full_disk_costs_no_line_and_is_told_once() -> None:
    read, written = os.pipe()
    lines: list[str] = []
    log = await _Log.open(read, Path("/dev/full"), lines.append)
    log.data_received(b"notes\n")
    with os.fdopen(written, "wb", 0) as output:
        output.write(b"epoch 0\nepoch 1\nepo")
        while len(lines) < 4:
            await asyncio.sleep(0)
        output.write(b"ch 2\nthe last")
    await log.complete
    told, *rest = lines
    assert told.startswith("ddpjob: the log is not complete: ") and "No space left" in told
    assert rest == ["notes", "epoch 0", "epoch 1", "epoch 2", "the last"]
    assert list(log.tail) == lines


async def test_the_file_has_every_byte_of_a_log(tmp_path: Path) -> None:
    lines: list[str] = []
    read, written = os.pipe()
    log = await _Log.open(read, tmp_path / "log", lines.append)
    with os.fdopen(written, "wb", 0) as output:
        output.write(b"10%\r20%\r\nepoch 0\nthe last")
    await log.complete
    assert lines == ["20%", "epoch 0", "the last"]
    assert (tmp_path / "log").read_bytes() == b"10%\r20%\r\nepoch 0\nthe last"
