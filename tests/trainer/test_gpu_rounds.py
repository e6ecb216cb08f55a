"""The part of `make gpu-check` that restarts in place, on CPUs with a stand-in for GPU memory."""

import pytest

pytest.importorskip("torch")

from benchmarks import gpu_rounds
from benchmarks.gpu_rounds import ASKED


def test_ranks_start_again_in_place_and_find_their_memory_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_rounds, "RESTARTS", 2)
    assert gpu_rounds.demands(2, backend="gloo") == [
        (ASKED[0], "0 devices open, in 5 looks at one", True),
        (ASKED[1], "6 of 6 ranks in 3 rounds", True),
        (ASKED[2], "right in 3 of 3 rounds", True),
        (ASKED[3], "0, 0 MiB less than in round 0, of 256 MiB", True),
    ]
