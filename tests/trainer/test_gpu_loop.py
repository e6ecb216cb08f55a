"""The parts of `make gpu-check` that look at the loop, as far as they go without a GPU."""

from typing import Any

import pytest
import torch

from benchmarks import gpu_loop, gpu_rank
from ddptrain.config import parse


def test_what_waits_for_the_gpu_is_an_error_after_a_few_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mode, seen = ["default"], []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda asked: mode.append(asked))

    def note(argument: int) -> int:
        seen.append(mode[-1])
        if argument == gpu_rank.FIRST + 1:
            raise RuntimeError("called a synchronizing CUDA operation")
        return argument

    call: Any = gpu_rank.busy(note)
    assert [call(number) for number in range(gpu_rank.FIRST + 1)] == list(range(gpu_rank.FIRST + 1))
    with pytest.raises(RuntimeError, match="synchronizing"):
        call(gpu_rank.FIRST + 1)
    assert seen == ["default"] * gpu_rank.FIRST + ["error"] * 2
    assert mode[-1] == "default"


@pytest.mark.deep
def test_a_group_of_which_a_rank_fails_ends_with_its_error(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_loop, "TRAINING", ())  # the digits
    monkeypatch.setattr(gpu_loop, "MOST_LEAVING", 1000)
    asked, measured, met = gpu_loop.leaving(2, backend="gloo")
    assert met, (asked, measured)


@pytest.mark.deep
def test_a_training_that_fails_meets_no_demand(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_loop, "TRAINING", ("--epochs=none",))
    asked, measured, met = gpu_loop.busy("native", 1, backend="gloo")
    assert not met and measured.startswith("failed: "), (asked, measured)
    assert asked.startswith("native: no step waits for the GPU")


def test_the_options_of_its_trainings_exist() -> None:
    for level in gpu_loop.MOST_WAITED:
        assert parse(level, gpu_loop.TRAINING).data == "synthetic"
