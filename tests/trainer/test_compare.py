"""The comparison of one process, DataParallel and DDP; the check for GPUs where there is none."""

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from benchmarks import gpu
from ddptrain.compare import main as compare
from ddptrain.compare.machine import Machine, count_cores, cpu_model
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


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, ["single 1 × 1", "DDP 1 × 1"]),
        (
            5,
            [
                *("single 1 × 1", "DataParallel 1 × 2", "DataParallel 1 × 4"),
                *("DDP 1 × 1", "DDP 2 × 1", "DDP 4 × 1"),
            ],
        ),
    ],
)
def test_on_gpus_each_process_has_one(gpus: int, expected: list[str]) -> None:
    rows = variants(16, gpus)
    assert names(rows) == expected
    assert rows[-1].threads == 16 // rows[-1].processes


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


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_the_baseline_is_one_thread_or_one_gpu(gpus: int) -> None:
    first = variants(4, gpus)[0]
    assert (first.kind, first.units) == (SINGLE, 1)


def test_a_machine_that_slows_down_does_not_change_the_speed_up() -> None:
    results = {ONE: [run(100), run(200)], TWO: [run(50), run(100)]}
    assert speed_ups(SAMPLES, results, TWO) == pytest.approx([2, 2])


def test_with_a_weak_batch_equal_steps_are_full_efficiency() -> None:
    weak = replace(SAMPLES, weak=True)
    assert speed_ups(weak, {ONE: [run(80)], TWO: [run(80)]}, TWO) == pytest.approx([2])


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


def test_tokens_and_gpus_have_their_own_columns() -> None:
    one = Variant(SINGLE, 1, 8, gpus=1)
    tokens = Scale(8, weak=True, unit="tokens", per_sample=1024)
    head, _, row = table(tokens, {one: [run(4)]}).splitlines()
    assert "processes × GPUs | tokens/s" in head
    assert "peak memory of a GPU, MiB" in head
    assert "| 2,048,000 | 4.00 (4.00–4.00) |" in row


def test_out_of_memory_is_a_row_of_its_own() -> None:
    lines = table(SAMPLES, {ONE: [run(100)] * 2, TWO: [run(50), None]}).splitlines()
    assert "100 (100–100)" in lines[2]
    assert lines[3] == "| DDP | 2 × 1 | out of memory | – | – | – | – | – | – |"


def test_without_a_first_row_there_is_nothing_to_compare_with() -> None:
    last = table(SAMPLES, {ONE: [None], TWO: [run(50)]}).splitlines()[-1]
    assert last == "| DDP | 2 × 1 | 1,280 | 50.0 (50.0–50.0) | – | – | 500 | – | – |"


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


def test_the_worst_rank_counts() -> None:
    one = Measurement(0.1, 500, 8, bus_bytes_per_second=3e9, hidden=0.9)
    other = Measurement(0.2, 400, 8, bus_bytes_per_second=2e9, hidden=0.8)
    assert compare.of_all_ranks([one, other]) == Measurement(0.2, 500, 8, 2e9, 0.8)


def test_defaults_depend_on_model_and_machine() -> None:
    cpu, _ = compare.parse([], cores=2, gpus=0)
    big, _ = compare.parse(["--model", "gpt2"], cores=2, gpus=1)
    small, _ = compare.parse([], cores=2, gpus=1)
    assert (cpu.batch_size, cpu.steps) == (64, 20)
    assert (big.batch_size, big.steps) == (8, 20)
    assert small.steps == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0"], "must be N or NxTHREADS, got '0'"),
        (["--processes", "2x0"], "must be N or NxTHREADS, got '2x0'"),
        (["--processes", "two"], "must be N or NxTHREADS, got 'two'"),
        (["--json", "."], ".: is a folder, must be a file"),
        (["--processes", "2"], "--processes: at most 1, one for each GPU, got 2"),
        (["--model", "gpt2", "--length", "1025"], "--length must be at most 1024, got 1025"),
        (["--json", "no/such.json"], "no/such.json: there is no folder no"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare.parse(arguments, cores=4, gpus=1)
    assert message in capsys.readouterr().err


def test_a_batch_must_reach_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare.parse(["--batch-size", "3"], cores=4, gpus=0)
    assert "--batch-size: at least 4 for DDP 4 × 1, got 3" in capsys.readouterr().err
    compare.parse(["--batch-size", "3", "--weak"], cores=4, gpus=0)


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_a_containers_quota_bounds_the_cores(quota: str, cores: int | None, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    unbounded = count_cores(file)  # it does not exist yet
    file.write_text(f"{quota}\n")
    assert count_cores(file) == (cores or unbounded)


def test_the_processor_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Fast 9000\ncache size\t: 1 KB\n")
    assert cpu_model(file) == "Fast 9000"
    assert cpu_model(tmp_path / "none")


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
        *(
            "--cores",
            "1",
            "--warmup",
            "1",
            "--batch-size",
            "16",
            "--json",
            str(tmp_path / "all.json"),
        ),
        *("--markdown", str(tmp_path / "page.md")),
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


def computed(process: psutil.Process) -> float:
    """Seconds that it has computed; a short-lived helper may be gone by now."""
    with suppress(psutil.NoSuchProcess):
        return process.cpu_times().user
    return 0


def test_processes_die_with_the_command(start: Start) -> None:
    """Although they ignore SIGINT, as children of a shell's background job do."""
    process = start(
        "-c",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from ddptrain.compare.main import main; main(['--steps', '1000000'])",
    )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 200
    while sum(map(computed, children)) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=200)
    for child in alive:
        child.kill()
    assert children and not alive


def test_without_gpus_the_check_says_what_it_would_measure(
    alone: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "PAGE", tmp_path / "gpu.md")
    assert gpu.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("No GPU here: nothing is measured")
    for precision in ("bf16", "fp16"):
        assert f"-m ddptrain.native --data digits --seed SEED --{precision}\n" in said
        assert f"python -m ddptrain.compare --model gpt2 --weak --{precision}\n" in said
    assert "at least 0.97,\nand of --bf16 and --fp16 at most 0.3 points less" in said
    assert not gpu.PAGE.exists()


def test_the_gpu_page_says_what_was_met_and_what_is_missing() -> None:
    trained = gpu.Trained([0.98, 0.99], {"bf16": [0.97, 0.98], "fp16": [0.98, 0.98]})
    one = Machine(cores=8, gpus=1, hardware="a GPU", versions="NCCL 2")
    page = gpu.page(trained.demands, ["FIRST", "SECOND"], machine=one, date="2026-01-31")
    assert "on 2026-01-31" in page
    assert "- a GPU\n- NCCL 2\n" in page
    assert "There is one GPU here, so rows for several are missing" in page
    assert "0.9800 to 0.9900, mean 0.9850 | yes |" in page
    assert "0.9700 to 0.9800, mean 0.9750: -1.00 points | **no** |" in page
    assert "0.9800 to 0.9800, mean 0.9800: -0.50 points | **no** |" in page
    assert "FIRST\n\nSECOND" in page
    two = gpu.page(trained.demands, [], machine=replace(one, gpus=2), date="")
    assert "--nproc-per-node 2 " in two
    assert "missing" not in two


def test_half_precision_may_gain_and_lose_a_little() -> None:
    a_little = gpu.Trained([0.98, 0.98], {"fp16": [0.979, 0.976]})
    assert [met for *_, met in a_little.demands] == [True, True]
    too_low = gpu.Trained([0.969, 0.98], {"fp16": [0.99, 0.99]})
    assert [met for *_, met in too_low.demands] == [False, True]


def test_the_options_of_the_gpu_page_exist() -> None:
    for arguments in gpu.COMPARISONS:
        compare.parse(arguments, cores=8, gpus=2)
