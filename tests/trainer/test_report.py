"""What a training says of itself: history, TensorBoard, profile, memory, the slowest rank."""

import gzip
import json
import logging
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddptrain import memory, native
from ddptrain.config import parse
from ddptrain.dist import World
from ddptrain.history import HistoryFile, LogDirError, TensorBoardLog
from ddptrain.memory import Memory
from ddptrain.native import train
from ddptrain.preemption import StopVote
from ddptrain.report import Report
from ddptrain.straggler import NOTABLE_SECONDS, slowest

NATIVE, SLOW = "ddptrain.native", "slow_rank"
GIB = 2**30


@pytest.fixture(scope="module")
def forked(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """The log folder of two ranks, and what they print where rank 1 is slow and where it is not."""
    folder = tmp_path_factory.mktemp("report")
    logs = (f"--log-dir={folder}", "--tensorboard", "--profile")
    runs = [(NATIVE, "--epochs=5", *logs), (SLOW, "--epochs=5"), (NATIVE, "--epochs=1", *logs[:1])]
    return folder, fork_ranks(2, *runs)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.deep
def test_the_history_goes_on_where_a_training_starts_again(
    forked: tuple[Path, list[str]],
) -> None:
    evaluated = [line for line in lines(forked[0]) if line["step"] % 23 == 0]
    assert [line["step"] for line in evaluated] == [23, 46, 69, 92, 115, 115, 23, 23]
    last = evaluated[4]
    assert (last["total_steps"], last["epoch"], last["attempt"]) == (115, 5.0, 0)
    assert 0 < last["loss"] < 1 and 0.5 < last["test_accuracy"] <= 1
    assert last["samples_per_second"] > 0 and 0 <= last["data_wait_percent"] <= 100
    assert last["memory_bytes"] > 0 and 0 < last["memory_percent"] <= 100


@pytest.mark.deep
def test_tensorboard_reads_the_same(forked: tuple[Path, list[str]]) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (file,) = (forked[0] / "tensorboard").iterdir()
    found: dict[str, list[int]] = {}
    for event in loading.LegacyEventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    assert found["test_accuracy"] == [23, 46, 69, 92, 115, 115]
    assert {"loss", "samples_per_second", "data_wait_percent", "memory_bytes"} <= found.keys()


@pytest.mark.deep
def test_every_rank_leaves_a_trace_of_three_steps(forked: tuple[Path, list[str]]) -> None:
    files = sorted((forked[0] / "profile").iterdir())
    assert [file.name.split(".")[0] for file in files] == ["rank-0", "rank-1"]
    for file in files:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        steps = {e["name"] for e in events if re.match(r"ProfilerStep#\d+$", e.get("name", ""))}
        assert len(steps) == 3
        assert any("allreduce" in e.get("name", "") for e in events)


@pytest.mark.deep
def test_the_slow_rank_is_named(forked: tuple[Path, list[str]]) -> None:
    _, (_, slow, _) = forked
    assert "rank 1 is slow" in slow and "rank 0 is slow" not in slow


def test_a_rank_stands_out_by_waiting_least() -> None:
    noise = NOTABLE_SECONDS["cpu"]
    found = slowest([(0.05, 0.1), (0.01, 0.1), (0.06, 0.1)], noise)
    assert found and found.rank == 1
    told = "rank 1 is slow: of a step's 100 ms it waits 10 ms for the others, and rank 2 waits 60"
    assert told in found.text
    assert slowest([(0.05, 0.1), (0.045, 0.1)], noise) is None
    assert slowest([(0.05, 0.1)], noise) is None
    assert slowest([(0.002, 0.006), (0.004, 0.006)], noise) is None, "milliseconds are nothing"
    assert slowest([(0.0, 0.0), (0.0, 0.0)], noise) is None
    found = slowest([(0.0011, 0.003), (0.0001, 0.003)], NOTABLE_SECONDS["cuda"])
    assert found and found.rank == 1, "on GPUs they are something"


def test_a_loss_that_is_not_a_number_is_in_the_history(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "new/history.jsonl", 2, 3)
    history.write(step=1, total_steps=2, epoch=0.5, loss=math.nan, metrics={"memory_bytes": 5})
    history.close()
    (line,) = lines(tmp_path / "new")
    assert math.isnan(line["loss"])
    assert (line["memory_bytes"], line["attempt"], line["round"]) == (5, 2, 3)


def test_without_the_package_tensorboard_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(LogDirError, match="pip install tensorboard"):
        TensorBoardLog(tmp_path)


@pytest.mark.parametrize("option", ["--tensorboard", "--profile"])
def test_what_needs_a_folder_says_so(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("native", [option])
    assert f"{option} needs --log-dir" in capsys.readouterr().err


# --- memory -------------------------------------------------------------------------------------


def test_a_containers_cache_does_not_count_as_used(tmp_path: Path) -> None:
    assert memory.of_container(tmp_path / "no control groups") is None
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\nactive_file 7\n")
    assert memory.of_container(tmp_path) == Memory(3 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.of_container(tmp_path) is None


def test_version_1_of_the_control_groups(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in {
        "limit_in_bytes": str(4 * GIB),
        "usage_in_bytes": str(3 * GIB),
        "stat": f"total_inactive_file {GIB}\n",
    }.items():
        (tmp_path / f"memory/memory.{name}").write_text(text)
    assert memory.of_container(tmp_path) == Memory(2 * GIB, 4 * GIB)
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    assert memory.of_container(tmp_path) is None


def test_what_torch_keeps_for_later_on_a_gpu_is_not_used() -> None:
    """Of 75 GiB that the driver counts, torch would give 60 back, but for 5 in use in part."""
    allocator = {
        "reserved_bytes.all.current": 70 * GIB,
        "active_bytes.all.current": 10 * GIB,
        "inactive_split_bytes.all.current": 5 * GIB,
    }
    assert memory.of_gpu(5 * GIB, 80 * GIB, allocator) == Memory(20 * GIB, 80 * GIB)
    assert memory.of_gpu(5 * GIB, 80 * GIB, {}) == Memory(75 * GIB, 80 * GIB)


def test_a_warning_comes_once_before_the_memory_is_used_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "measure", lambda _device: Memory(95 * GIB // 10, 10 * GIB))
    monkeypatch.setattr("ddptrain.report.MEMORY_SECONDS", 0.0)
    config = parse("native", ["--max-steps=3"])
    with Report(config, world) as report:
        train(config, world, StopVote(), report)
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].startswith("rank 0: memory is nearly used up: 9.5 of 10.0 GiB (95 %)")
    assert warned[0].endswith("for the same result without dropout")


def test_after_running_out_of_memory_the_log_says_where_it_went(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    net = torch.nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.zeros(1, 1024)).sum().backward()
    optimizer.step()
    with (
        pytest.raises(RuntimeError, match="allocate"),
        Report(parse("native", []), world) as report,
    ):
        report.begin(net, optimizer, epoch_steps=1, total_steps=1)
        torch.empty(2**60, dtype=torch.uint8)
    told = caplog.messages[-1]
    for line in (
        *("out of memory on cpu", "weights: 0.004 GiB", "gradients: 0.004 GiB"),
        *("optimizer: 0.008 GiB", "--accumulation 2 or more", "the same result without dropout"),
    ):
        assert line in told


def test_a_report_that_cannot_be_written_ends_no_training(
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("DDPJOB_PROGRESS_FILE", str(tmp_path / "nowhere" / "progress.json"))
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    assert native.main(["--max-steps=2", f"--log-dir={tmp_path}"]) == 0
    told = [record.message for record in caplog.records if "no further reports" in record.message]
    assert [line.split(":")[0] for line in told] == ["ProgressFile", "HistoryFile"]
