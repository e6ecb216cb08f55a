"""A training that goes on with another number of nodes: the same samples in each batch."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.trainer.training import differences, drift, saved

pytestmark = pytest.mark.deep(turn=2)

LEVELS = ("ddptrain.native", "ddptrain.accelerated", "ddptrain.hf")
# All sizes divide the batch, which Accelerate and transformers want. 30 steps make an epoch.
SAME = ("--no-dropout", "--batch-size=48", "--checkpoint-every=10", "--keep=9")


def test_sizes_of_4_and_3_and_4_train_as_4_do(
    fork_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    """In mid-epoch, at all levels. The sums of float32 have another order, no more."""
    for world, steps, folder in (
        (4, 40, "whole"),
        (4, 15, "sizes"),
        (3, 25, "sizes"),
        (4, 40, "sizes"),
    ):
        runs = [
            (
                level,
                f"--max-steps={steps}",
                "--checkpoint-dir",
                str(tmp_path / level / folder),
                *SAME,
            )
            for level in LEVELS
        ]
        outputs = fork_ranks(world, *runs, ACCELERATE_USE_CPU="true")
        assert all(f"after {steps} steps, world size {world}" in output for output in outputs)
    for level in LEVELS:
        whole, sizes = tmp_path / level / "whole", tmp_path / level / "sizes"
        assert [saved(sizes, step)["world_size"] for step in (15, 25, 40)] == [4, 3, 4]
        # Not the largest: where sums have another order, one activation near 0 may fall to the
        # other side of a ReLU, or the maximum of a pool to its neighbour, and a channel's gradient
        # with it. Adam then moves that channel's few hundred weights by up to a step of its rate.
        assert differences(saved(sizes, 40), saved(whole, 40)).median() < 2e-6
        assert drift(saved(sizes, 40), saved(whole, 30)) > 1e-3  # it moves
