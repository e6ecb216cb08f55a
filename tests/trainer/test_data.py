import gzip
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from ddptrain import data
from ddptrain.data import Dataset, load
from ddptrain.files import DataError, parse_cifar10, read
from tests.trainer.image_files import idx, write_cifar10, write_mnist

CPU = torch.device("cpu")


def test_the_digits_are_the_published_ones() -> None:
    digits = load("digits", None, CPU)
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.images.max() == 16
    assert sorted(set(digits.test.labels.tolist())) == list(range(10))
    source = resources.files("ddptrain").joinpath("digits.txt").read_text()
    assert digits.sha256 in source


def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DIGITS_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"digits.npz: SHA-256 must be 0{64}, got 83c5d2"):
        load("digits", None, CPU)


def test_a_batch_is_normalised_to_mean_0_and_deviation_1() -> None:
    train = load("digits", None, CPU).train
    images, labels = train.batch(torch.arange(len(train)))
    assert images.shape == (1437, 1, 8, 8)
    assert labels.dtype == torch.int64
    assert abs(images.mean().item()) < 0.01
    assert abs(images.std().item() - 1) < 0.01


def content(dataset: Dataset) -> tuple[object, ...]:
    parts = (dataset.train, dataset.test)
    return dataset.sha256, *(part.images.tolist() for part in parts)


def test_mnist_is_read_packed_or_not_from_either_place(tmp_path: Path) -> None:
    write_mnist(tmp_path / "packed")
    unpacked = tmp_path / "plain" / "MNIST" / "raw"
    unpacked.mkdir(parents=True)
    for path in (tmp_path / "packed").iterdir():
        (unpacked / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    packed, plain = (load("mnist", tmp_path / name, CPU) for name in ("packed", "plain"))
    assert packed.train.images.shape == (20, 1, 28, 28)
    assert content(packed) == content(plain)
    write_mnist(tmp_path / "other", seed=1)
    assert load("mnist", tmp_path / "other", CPU).sha256 != packed.sha256


def test_cifar10_is_five_files_and_one(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    found = load("auto", tmp_path, CPU)
    assert (found.name, found.train.shape) == ("cifar10", (3, 32, 32))
    assert (len(found.train), len(found.test)) == (20, 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: b"", "has 4 bytes or more, this one 0"),
        (lambda content: b"\0\0\x0d\3" + content[4:], "begins with 000008, this one with 00000d03"),
        (lambda content: content[:10], "ends within the IDX header of 16 bytes"),
        (lambda content: content[:-1], "20 x 28 x 28 items make 15696 bytes, it has 15695"),
        (lambda content: content + b"\0", "it has 15697"),
        (lambda content: idx(np.zeros((20, 27, 28), np.uint8)), r"of 28 x 28, has \(20, 27, 28\)"),
        (lambda content: gzip.compress(content)[:-9], "damaged gzip file"),
        (lambda content: b"\0\0\x08\x50" + bytes(4 * 80), "80 dimensions"),
        (lambda content: b"\0\0\x08\4" + b"\xff" * 12 + bytes(4), "4 dimensions"),
    ],
)  # fmt: skip
def test_a_broken_image_file_is_refused_by_name(
    tmp_path: Path, change: Callable[[bytes], bytes], told: str
) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(gzip.decompress(path.read_bytes())))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.gz: .*{told}"):
        load("mnist", tmp_path, CPU)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.zeros(19, np.uint8), r"must hold 20 labels, has \(19,\)"),
        (np.full(20, 10, np.uint8), "must hold labels below 10"),
    ],
)
def test_labels_that_fit_no_images_are_refused(
    tmp_path: Path, labels: np.ndarray, told: str
) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    with pytest.raises(DataError, match=told):
        load("mnist", tmp_path, CPU)


def test_a_broken_cifar_file_is_refused() -> None:
    with pytest.raises(DataError, match="multiple of 3073 bytes, this one 3072"):
        parse_cifar10(bytes(3072), Path("a"))
    with pytest.raises(DataError, match="below 10, found 200"):
        parse_cifar10(bytes([200]) + bytes(3072), Path("a"))


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs --data-dir or "):
        load("mnist", None, CPU)
    with pytest.raises(DataError, match="no train-images-idx3-ubyte .*ddptrain fetch mnist --to"):
        load("mnist", tmp_path, CPU)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_folder_says_which_data_set_it_holds(tmp_path: Path) -> None:
    assert load("auto", None, CPU).name == "digits"
    with pytest.raises(DataError, match="holds none of mnist, fashion-mnist, cifar10"):
        load("auto", tmp_path, CPU)
    write_mnist(tmp_path / "one" / "FashionMNIST" / "raw")
    assert load("auto", tmp_path / "one", CPU).name == "fashion-mnist"
    write_mnist(tmp_path / "unclear")
    with pytest.raises(DataError, match="may hold mnist or fashion-mnist: say which with --data"):
        load("auto", tmp_path / "unclear", CPU)


def test_synthetic_data_are_always_the_same_and_only_for_who_asks() -> None:
    one, two = load("synthetic", None, CPU), load("synthetic", None, CPU)
    assert one.train.shape == (1, 28, 28)
    assert content(one) == content(two)
    images, _ = one.train.batch(torch.arange(1000))
    assert abs(images.mean().item()) < 0.01
    assert abs(images.std().item() - 1) < 0.01


def test_each_channel_is_normalised_by_its_own_numbers(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "files")
    train = load("cifar10", tmp_path / "files", CPU).train
    images, _ = train.batch(torch.tensor([3, 0]))
    pixels = data.PIXELS["cifar10"]
    for channel in range(3):
        raw = train.images[[3, 0], channel].float() / 255
        expected = (raw - pixels.mean[channel]) / pixels.std[channel]
        assert torch.equal(images[:, channel], expected)
