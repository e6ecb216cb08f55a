"""Mistakes that tutorials make, each with its wrong number beside ours."""

import json
from collections.abc import Callable
from typing import Any

import pytest

RANKS, TEST, TRAIN = 7, 360, 1437

Torchrun = Callable[..., str]


@pytest.fixture(scope="module")
def numbers(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mistakes")
    fork_ranks(RANKS, ("mistakes", f"--checkpoint-dir={folder}"))
    found: dict[str, Any] = json.loads((folder / "numbers.json").read_text())
    return found


def test_accuracy_of_a_shard_over_the_whole_set_is_a_fraction_of_it(
    numbers: dict[str, Any],
) -> None:
    correct, tested = numbers["exact"]
    assert tested == TEST and correct / tested > 0.8
    assert numbers["shard_over_whole"] == pytest.approx(correct / tested / RANKS, rel=0.1)


def test_a_padded_sampler_counts_samples_twice(numbers: dict[str, Any]) -> None:
    correct, tested = numbers["padded"]
    assert tested == 364
    assert numbers["exact"][0] <= correct  # divided by 360 it is too good


def test_without_a_sampler_every_rank_sees_everything(numbers: dict[str, Any]) -> None:
    assert numbers["seen_without_sampler"] == RANKS * TRAIN


def test_without_set_epoch_every_epoch_has_the_same_order(numbers: dict[str, Any]) -> None:
    assert numbers["order_without_set_epoch"] is True
    assert numbers["order_with_set_epoch"] is False


def test_a_mean_of_means_is_not_the_mean(numbers: dict[str, Any]) -> None:
    assert numbers["mean_of_means"] > 1e-2
    assert numbers["weighted"] < 1e-5


def test_the_misspelt_option_is_refused(torchrun: Torchrun) -> None:
    output = torchrun(1, "--nproc_per_nodes=2", "-m", "ddptrain.native", code=2)
    assert "--nproc_per_nodes" in output
