import hashlib
from importlib import resources

import pytest
import torch

from ddptrain import data
from ddptrain.data import Samples, global_batch_size, indices, load_digits, steps_per_epoch

SAMPLES, BATCH = 1437, 64  # 22 full batches and one of 29


def share(step: int, rank: int, world: int, *, epoch: int = 0, seed: int = 1) -> list[int]:
    chosen = indices(
        SAMPLES, seed=seed, epoch=epoch, step=step, global_batch=BATCH, rank=rank, world=world
    )
    return [int(index) for index in chosen]


def epoch_order(world: int, *, epoch: int = 0, seed: int = 1) -> list[list[int]]:
    """The global batches of an epoch, each sorted, put together from all ranks' shares."""
    steps = range(steps_per_epoch(SAMPLES, BATCH))
    return [
        sorted(sum((share(s, r, world, epoch=epoch, seed=seed) for r in range(world)), []))
        for s in steps
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 7, 100])
def test_each_sample_is_taken_exactly_once_per_epoch(world: int) -> None:
    assert sorted(sum(epoch_order(world), [])) == list(range(SAMPLES))


@pytest.mark.parametrize("world", [2, 3, 7, 100])
def test_the_global_batch_does_not_depend_on_the_world_size(world: int) -> None:
    assert epoch_order(world) == epoch_order(1)


def test_the_order_changes_with_the_epoch_and_with_the_seed() -> None:
    orders = [epoch_order(1), epoch_order(1, epoch=1), epoch_order(1, seed=2)]
    assert len({str(order) for order in orders}) == 3


def test_shares_differ_by_one_sample_at_most() -> None:
    sizes = [len(share(0, rank, 3)) for rank in range(3)]
    assert sizes == [22, 21, 21]


def test_the_last_batch_of_an_epoch_has_what_is_left() -> None:
    assert steps_per_epoch(SAMPLES, BATCH) == 23
    assert [global_batch_size(SAMPLES, step, BATCH) for step in (0, 21, 22)] == [64, 64, 29]
    assert sum(len(share(22, rank, 100)) for rank in range(100)) == 29


def test_the_digits_are_the_published_ones() -> None:
    digits = load_digits(torch.device("cpu"))
    assert digits.train.images.shape == (1437, 8, 8)
    assert digits.test.images.shape == (360, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.images.max() == 16
    assert sorted(set(digits.test.labels.tolist())) == list(range(10))
    source = resources.files("ddptrain").joinpath("digits.txt").read_text()
    assert digits.sha256 in source


def test_no_image_is_in_both_the_train_and_the_test_set() -> None:
    digits = load_digits(torch.device("cpu"))
    train, test = (
        {hashlib.sha256(image.numpy().tobytes()).digest() for image in part.images}
        for part in (digits.train, digits.test)
    )
    assert not train & test


def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DIGITS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"digits.npz: SHA-256 must be 0{64}, got 83c5d2"):
        load_digits(torch.device("cpu"))


def test_a_batch_is_normalised_to_mean_0_and_deviation_1() -> None:
    train: Samples = load_digits(torch.device("cpu")).train
    images, labels = train.batch(torch.arange(len(train)))
    assert images.shape == (1437, 1, 8, 8)
    assert labels.dtype == torch.int64
    assert abs(images.mean().item()) < 0.01
    assert abs(images.std().item() - 1) < 0.01
