"""The part of `make gpu-check` that restarts in place, on CPUs with a stand-in for GPU memory."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import gpu_rounds
from benchmarks.gpu_rounds import ASKED
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
