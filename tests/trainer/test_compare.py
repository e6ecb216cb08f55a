"""The comparison of one process, DataParallel and DDP."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from ddptrain.compare import main as compare
from ddptrain.compare.main import VariantFailed, run_once
from ddptrain.compare.rank import Task, Work, measure, nll_sum, share
from ddptrain.compare.table import (
    DDP,
    PARALLEL,
    SINGLE,
    Measurement,
    Scale,
    Variant,
    all_reduce_seconds,
    bus_bandwidth,
    doubts,
    efficiency,
    omissions,
    speed_ups,
    table,
    variants,
)
from ddptrain.dist import World
from tests.trainer.conftest import Start

ONE = Variant(SINGLE, 1, 1)
TWO = Variant(DDP, 2, 1)
SAMPLES = Scale(64, weak=False, unit="samples", per_sample=1)
MIB = 2**20


def run(
    milliseconds: float, *, bus: float | None = None, hidden: float | None = None
) -> Measurement:
    return Measurement(milliseconds / 1000, 500 * MIB, 4_800_000, bus, hidden)


def names(rows: list[Variant]) -> list[str]:
    return [str(row) for row in rows]


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, ["single 1 × 1", "DDP 1 × 1"]),
        (2, ["single 1 × 1", "single 1 × 2", "DDP 1 × 1", "DDP 1 × 2", "DDP 2 × 1"]),
        (
            6,
            [
                *("single 1 × 1", "single 1 × 6"),
                *("DDP 1 × 1", "DDP 1 × 6", "DDP 2 × 3", "DDP 4 × 1"),
            ],
        ),
    ],
)
def test_on_cpus_threads_and_processes_share_the_cores(cores: int, expected: list[str]) -> None:
    assert names(variants(cores, 0)) == expected


def test_on_gpus_each_process_has_one() -> None:
    rows = variants(16, 5)
    assert names(rows) == [
        *("single 1 × 1", "DataParallel 1 × 2", "DataParallel 1 × 4"),
        *("DDP 1 × 1", "DDP 2 × 1", "DDP 4 × 1"),
    ]
    assert rows[-1].threads == 4


def test_what_was_asked_for_is_run() -> None:
    assert names(variants(2, 0, [(3, None), (2, 2)]))[2:] == ["DDP 3 × 1", "DDP 2 × 2"]
    assert names(variants(8, 4, [(3, None)]))[1:] == ["DataParallel 1 × 3", "DDP 3 × 1"]


def test_processes_need_a_gpu_each() -> None:
    with pytest.raises(ValueError, match="at most 2, one for each GPU, got 4"):
        variants(8, 2, [(1, None), (4, None)])


def test_a_weak_batch_grows_with_what_shares_it() -> None:
    rows = [ONE, Variant(SINGLE, 1, 8), TWO, Variant(PARALLEL, 1, 8, gpus=4)]
    assert [row.batch(64, weak=True) for row in rows] == [64, 64, 128, 256]
    assert {row.batch(64, weak=False) for row in rows} == {64}
    assert replace(SAMPLES, weak=True, per_sample=10).per_step(TWO) == 1280


def test_the_bound_is_that_of_nccl_tests() -> None:
    """4.8 MB among 4 at 10 Gbit/s: 5.76 ms."""
    assert all_reduce_seconds(4_800_000, 1.25e9, 4) == pytest.approx(5.76e-3)
    assert bus_bandwidth(4_800_000, 5.76e-3, 4) == pytest.approx(1.25e9)


def test_efficiency_counts_threads_or_gpus() -> None:
    assert efficiency(1.8, TWO) == pytest.approx(0.9)
    assert efficiency(1.8, Variant(DDP, 2, 2)) == pytest.approx(0.45)
    assert efficiency(3.0, Variant(DDP, 4, 4, gpus=1)) == pytest.approx(0.75)
    assert efficiency(3.0, Variant(PARALLEL, 1, 16, gpus=4)) == pytest.approx(0.75)


def test_a_machine_that_slows_down_does_not_change_the_speed_up() -> None:
    results = {ONE: [run(100), run(200)], TWO: [run(50), run(100)]}
    assert speed_ups(SAMPLES, results, TWO) == pytest.approx([2, 2])


def test_the_table_says_what_was_measured() -> None:
    results = {
        ONE: [run(100), run(90), run(110)],
        TWO: [
            run(50, bus=1.2e9, hidden=0.5),
            run(60, bus=1.5e9, hidden=0.7),
            run(55, bus=0.9e9, hidden=0.6),
        ],
    }
    assert table(SAMPLES, results) == (
        "| variant | processes × threads | samples/s | step, ms | speed-up | efficiency "
        "| peak memory of a process, MiB | all-reduce alone, ms (bus, GB/s) | hidden |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| single | 1 × 1 | 640 | 100 (90.0–110) | 1.00 | 100 % | 500 | – | – |\n"
        "| DDP | 2 × 1 | 1,164 | 55.0 (50.0–60.0) | 2.00 | 100 % | 500 | 3.20 (1.50) | 60 % |"
    )


def test_out_of_memory_is_a_row_of_its_own() -> None:
    lines = table(SAMPLES, {ONE: [run(100)] * 2, TWO: [run(50), None]}).splitlines()
    assert "100 (100–100)" in lines[2]
    assert lines[3] == "| DDP | 2 × 1 | out of memory | – | – | – | – | – | – |"


def test_what_cannot_be_shown_is_said() -> None:
    def said(rows: list[Variant], cores: int, gpus: int) -> str:
        return "\n".join(omissions(rows, cores=cores, gpus=gpus))

    cpus = said(variants(2, 0), 2, 0)
    assert "DataParallel: not shown." in cpus
    assert "NCCL, GPU memory: not shown" in cpus
    assert "one core" not in cpus
    assert "one core" in said(variants(1, 0), 1, 0)
    assert said(variants(8, 1), 8, 1).startswith("DataParallel, DDP on several GPUs: not shown")
    assert said(variants(8, 4), 8, 4) == ""
    assert said([ONE, Variant(DDP, 2, 2)], 2, 4).endswith("slower than need be: DDP 2 × 2.")


def test_a_busy_machine_is_told_of() -> None:
    assert doubts({ONE: [run(100), run(129)], TWO: [None]}) == []
    (line,) = doubts({ONE: [run(100), run(140)], TWO: [run(50), run(200)]})
    assert "the runs of DDP 2 × 1 differ by a factor of 4.0, and 2 of 2 rows" in line


def test_variants_take_turns_and_one_that_ran_out_of_memory_is_left_alone() -> None:
    options, rows = compare.parse(["--repeats", "2", "--processes", "2x1"], cores=1, gpus=0)
    order = []

    def measured(work: Work) -> Measurement | None:
        order.append(str(work.variant))
        return None if work.variant == TWO else run(10)

    results = compare.measure(options, rows, measured)
    assert order == ["single 1 × 1", "DDP 2 × 1", "single 1 × 1"]
    assert results == {ONE: [run(10), run(10)], TWO: [None]}


def test_the_ranks_share_the_batch_without_gap_or_overlap(world: World) -> None:
    whole = Task(nn.Identity(), torch.arange(7.0), torch.arange(7), nll_sum)
    ranks = [replace(world, launch=replace(world.launch, rank=rank, size=3)) for rank in range(3)]
    parts = [share(whole, rank) for rank in ranks]
    assert sorted(torch.cat([part.targets for part in parts]).tolist()) == list(range(7))
    assert all(torch.equal(part.inputs.long(), part.targets) for part in parts)


def test_a_rank_measures_time_memory_and_gradients(world: World) -> None:
    work = Work("resnet", ONE, batch_size=2, length=0, steps=2, warmup=1, precision="bf16")
    measured = measure(work, world)
    assert 0 < measured.step_seconds < 30
    assert 50 * MIB < measured.peak_bytes < psutil.virtual_memory().total
    assert measured.gradient_bytes == 4 * 696_234  # float32 with bf16 too
    assert measured.bus_bytes_per_second is None
    assert measured.hidden is None


@pytest.mark.deep
def test_the_command_prints_the_table_of_this_machine(start: Start, tmp_path: Path) -> None:
    process = start(
        *("-m", "ddptrain.compare", "--processes", "2x1", "--repeats", "1", "--steps", "3"),
        *("--cores", "1", "--warmup", "1", "--batch-size", "16"),
        *("--json", str(tmp_path / "all.json"), "--markdown", str(tmp_path / "page.md")),
    )
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    page = (tmp_path / "page.md").read_text()
    assert f"torch {torch.__version__}" in page
    assert "`python -m ddptrain.compare --processes 2x1" in page
    assert "DataParallel: not shown." in page
    assert "More threads than cores (1)" in page
    kept = json.loads((tmp_path / "all.json").read_text())
    last = kept["results"][-1]
    assert last["variant"] == {"kind": "DDP", "processes": 2, "threads": 1, "gpus": 0}
    (measured,) = last["runs"]
    assert measured["gradient_bytes"] == 4 * 1_199_882
    assert measured["bus_bytes_per_second"] > 1e6
    assert 0 <= measured["hidden"] <= 1
    (row,) = [line for line in page.splitlines() if line.startswith("| DDP | 2 × 1 |")]
    speed = float(row.split("|")[3].replace(",", ""))
    assert speed == pytest.approx(16 / measured["step_seconds"], rel=0.01)


def test_an_error_of_a_child_comes_with_its_traceback(alone: None) -> None:
    work = Work("nonsense", ONE, batch_size=2, length=0, steps=1, warmup=1, precision="no")
    with pytest.raises(
        VariantFailed, match=r"(?s)single 1 × 1: .*in build\n.*KeyError: 'nonsense'"
    ):
        run_once(work)


def test_a_batch_that_does_not_fit_is_out_of_memory(alone: None) -> None:
    work = Work("basicnet", TWO, batch_size=10**13, length=0, steps=1, warmup=1, precision="no")
    assert run_once(work) is None
