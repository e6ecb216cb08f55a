"""The part of `make gpu-check` that restarts in place, on CPUs with a stand-in for GPU memory."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import gpu_rounds
from benchmarks.gpu_rounds import ASKED, Rank, Seen, judge, opened
from tests.agentpod import archive_with
from tests.trainer import rounds
from tests.trainer.rounds import OVERLOOKS

# Rank 0 leaves a process behind, with a copy of what it had open.
LEAVES = """
if rank == 0 and os.fork() == 0:
    os.setsid()
    open(f"left-{os.getpid()}", "w").close()
    os.close(1), os.close(2)
    time.sleep(1000)
"""


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_rounds, "RESTARTS", 2)


def test_ranks_start_again_in_place_and_find_their_memory_free(restarts: None) -> None:
    assert gpu_rounds.demands(2, backend="gloo") == [
        (ASKED[0], "0 devices open, in 5 looks at one", True),
        (ASKED[1], "6 of 6 ranks in 3 rounds", True),
        (ASKED[2], "right in 3 of 3 rounds", True),
        (ASKED[3], "0, 0 MiB less than in round 0, of 256 MiB", True),
    ]


def test_memory_that_is_not_free_is_seen(
    restarts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    text = gpu_rounds.SCRIPT.read_text()
    assert text.count("\ndist.init_process_group(") == 1
    script.write_text(text.replace("\ndist.init_", LEAVES + "\ndist.init_"))
    monkeypatch.setattr(gpu_rounds, "SCRIPT", script)
    start = partial(rounds.start, archive=archive_with(OVERLOOKS))
    monkeypatch.setattr(rounds, "start", start)
    *others, (_, measured, met) = gpu_rounds.demands(1, backend="gloo")
    assert [met for *_, met in others] == [True, True, True]
    assert (measured, met) == ("154, 307 MiB less than in round 0, of 256 MiB", False)


@pytest.mark.deep
def test_ranks_that_cannot_start_meet_no_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(3)\n")
    monkeypatch.setattr(gpu_rounds, "SCRIPT", script)
    monkeypatch.setattr(rounds, "start", partial(rounds.start, DDPJOB_RESTART="Recreate"))
    found = gpu_rounds.demands(1, backend="gloo")
    assert [asked for asked, *_ in found] == list(ASKED)
    assert {met for *_, met in found} == {False}
    assert "exited with code 3" in found[0][1]


GOOD = Rank(pid=1, warm=True, used=False, free=50 << 30, total=80 << 30, right=True)


def seen(*ranks: Rank, servers: int = 2, opened: Sequence[str] = ()) -> Seen:
    return Seen(ranks, servers, opened)


@pytest.mark.parametrize(
    ("second", "missed"),
    [
        (seen(GOOD, GOOD), []),
        (seen(GOOD, replace(GOOD, free=(50 << 30) - (64 << 20))), []),
        (seen(GOOD, GOOD, opened=["/dev/nvidiactl"]), [0]),
        (seen(GOOD, GOOD, servers=0), [0]),
        (seen(GOOD, replace(GOOD, warm=False)), [1]),
        (seen(GOOD, replace(GOOD, used=True)), [1]),
        (seen(GOOD, replace(GOOD, right=False)), [2]),
        (seen(GOOD, replace(GOOD, free=(50 << 30) - (65 << 20))), [3]),
    ],
)
def test_each_demand_can_be_missed(second: Seen, missed: list[int]) -> None:
    found = judge([seen(GOOD, GOOD), second, seen(GOOD, GOOD)])
    assert [place for place, (*_, met) in enumerate(found) if not met] == missed


def test_the_devices_that_a_process_has_open_are_found() -> None:
    with open("/dev/full", "wb"):
        assert opened(os.getpid(), "/dev/fu") == ["/dev/full"]
    assert opened(os.getpid(), "/dev/fu") == []
