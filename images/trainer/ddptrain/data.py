"""The data sets in memory, and which samples each rank takes in each step.

All of them are small, so they stay on the device as uint8 and are normalised batch by batch: many
times faster than a DataLoader that decodes one sample at a time.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from ddptrain.files import Bytes, DataError, parse_cifar10, parse_idx, read

DIGITS_SHA256 = "83c5d2d9ac049bf159a48e7f5a7719bffe811e7a1b1b58c960736bc3f1a7da3d"
CLASSES = 10  # of every data set here
SYNTHETIC_SIZES = {"train": 8192, "test": 1024}
# Where torchvision keeps the files of a data set, below the folder that it is given.
FOLDERS = {
    "mnist": "MNIST/raw",
    "fashion-mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-bin",
}
IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR10 = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}


@dataclass(frozen=True)
class Pixels:
    """What makes of stored pixels numbers of mean 0 and deviation 1 over the train set."""

    white: float  # the brightest stored value
    mean: tuple[float, ...]  # of each channel, after division by `white`
    std: tuple[float, ...]


# MNIST's numbers are those of PyTorch's own example; the others too are their train sets'.
PIXELS = {
    "digits": Pixels(16, (0.305,), (0.376,)),
    "mnist": Pixels(255, (0.1307,), (0.3081,)),
    "fashion-mnist": Pixels(255, (0.2860,), (0.3530,)),
    "cifar10": Pixels(255, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "synthetic": Pixels(255, (0.5,), (0.2887,)),
}
NAMES = ("auto", *PIXELS)


@dataclass(frozen=True)
class Samples:
    """Images and labels that belong together, on one device."""

    images: torch.Tensor  # (N, C, H, W) uint8
    labels: torch.Tensor  # (N,) int64, 0 … 9
    pixels: Pixels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def any_image(self) -> torch.Tensor:
        """An image (1, C, H, W), for passes whose result nobody wants."""
        return self.batch(torch.zeros(1, dtype=torch.int64))[0]

    def batch(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised images (B, C, H, W) float32 and labels (B,) int64 of the `chosen` (B,)."""
        chosen = sent(chosen, self.labels.device)
        images = self.images.index_select(0, chosen).float().div_(self.pixels.white)
        images.sub_(self._mean).div_(self._std)
        return images, self.labels.index_select(0, chosen)

    @cached_property
    def _mean(self) -> torch.Tensor:  # (1, C, 1, 1)
        return self._of_channels(self.pixels.mean)

    @cached_property
    def _std(self) -> torch.Tensor:  # (1, C, 1, 1)
        return self._of_channels(self.pixels.std)

    def _of_channels(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, device=self.images.device).view(1, -1, 1, 1)


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`numbers` on `device`, without waiting for what a GPU still has to compute.

    From pageable memory they would go once all before them is done, and the host with them.
    """
    if device.type == "cuda" and numbers.device.type == "cpu":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


@dataclass(frozen=True)
class Dataset:
    """A train and a test set, and what to call them in the log."""

    name: str
    sha256: str  # of all that was read, unpacked
    train: Samples
    test: Samples

    def __str__(self) -> str:
        return (
            f"{self.name}, {len(self.train)} to train, {len(self.test)} to test, "
            f"sha256 {self.sha256}"
        )


@dataclass(frozen=True)
class _Part:
    """The train or the test set as it was read."""

    images: Bytes  # (N, C, H, W)
    labels: Bytes  # (N,)
    contents: Sequence[bytes]  # what its SHA-256 is made of


def load(name: str, folder: Path | None, device: torch.device) -> Dataset:
    """The data set `name`, one of NAMES, on `device`; its files are looked for in `folder`.

    `auto` is what `folder` holds, or the bundled digits without a folder. Nothing is downloaded.
    Raises DataError, which says what is missing or wrong.
    """
    if name != "digits" and folder is not None and not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    if name == "auto":
        name = "digits" if folder is None else _found_in(folder)
    parts = _READERS[name](name, folder)
    content = hashlib.sha256()
    for part in parts.values():
        for piece in part.contents:
            content.update(piece)
    train, test = (
        Samples(
            torch.from_numpy(part.images.copy()).to(device),
            torch.from_numpy(part.labels.astype(np.int64)).to(device),
            PIXELS[name],
        )
        for part in (parts["train"], parts["test"])
    )
    return Dataset(name, content.hexdigest(), train, test)


def data_dir() -> Path | None:
    """`$DDPJOB_DATA_DIR`, where a job's data volume is mounted."""
    folder = os.environ.get("DDPJOB_DATA_DIR")
    return Path(folder) if folder else None


def _digits(_name: str, _folder: Path | None) -> dict[str, _Part]:
    """The 1,797 bundled 8 x 8 digits, 1,437 to train and 360 to test; `digits.txt` has the source.

    Raises DataError if the file is not the one that was published.
    """
    content = resources.files("ddptrain").joinpath("digits.npz").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != DIGITS_SHA256:
        raise DataError(f"digits.npz: SHA-256 must be {DIGITS_SHA256}, got {sha256}")
    with np.load(io.BytesIO(content)) as arrays:
        return {
            part: _Part(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"], pieces)
            for part, pieces in (("train", [content]), ("test", []))
        }


def _idx(name: str, folder: Path | None) -> dict[str, _Part]:
    """MNIST, or what has its format: 28 x 28 grey pixels, labels from 0 to 9."""
    parts = {}
    for part, names in IDX.items():
        paths = [_file(name, folder, file) for file in names]
        contents = [read(path) for path in paths]
        images, labels = map(parse_idx, contents, paths)
        if images.ndim != 3 or images.shape[1:] != (28, 28):
            raise DataError(f"{paths[0]}: must hold images of 28 x 28, has {images.shape}")
        if labels.shape != images.shape[:1]:
            raise DataError(f"{paths[1]}: must hold {len(images)} labels, has {labels.shape}")
        if len(labels) == 0 or labels.max() >= CLASSES:
            raise DataError(f"{paths[1]}: must hold labels below {CLASSES}")
        parts[part] = _Part(images[:, None], labels, contents)
    return parts


def _cifar10(name: str, folder: Path | None) -> dict[str, _Part]:
    parts = {}
    for part, names in CIFAR10.items():
        paths = [_file(name, folder, file) for file in names]
        contents = [read(path) for path in paths]
        images, labels = zip(*map(parse_cifar10, contents, paths), strict=True)
        parts[part] = _Part(np.concatenate(images), np.concatenate(labels), contents)
    return parts


def _synthetic(_name: str, _folder: Path | None) -> dict[str, _Part]:
    """Noise in the shape of MNIST, always the same: for measurements of speed, not of learning."""
    parts = {}
    for part, size in SYNTHETIC_SIZES.items():
        noise = np.random.default_rng((28, size))
        images = noise.integers(0, 256, (size, 1, 28, 28), np.uint8)
        labels = noise.integers(0, CLASSES, size, np.uint8)
        parts[part] = _Part(images, labels, [images.tobytes(), labels.tobytes()])
    return parts


_READERS: Mapping[str, Callable[[str, Path | None], dict[str, _Part]]] = {
    "digits": _digits,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "cifar10": _cifar10,
    "synthetic": _synthetic,
}


def _file(name: str, folder: Path | None, file: str) -> Path:
    """Where `file` of the data set is: in torchvision's place below `folder`, or right in it."""
    if folder is None:
        raise DataError(f"--data {name}: needs --data-dir or $DDPJOB_DATA_DIR")
    for path in _places(name, folder, file):
        if path.is_file():
            return path
    raise DataError(
        f"--data {name}: no {file} (or {file}.gz) in {folder} or {folder / FOLDERS[name]}: "
        f"python -m ddptrain fetch {name} --to {folder}"
    )


def _places(name: str, folder: Path, file: str) -> Iterator[Path]:
    for place in (folder / FOLDERS[name], folder):
        yield place / file
        yield place / f"{file}.gz"


def _found_in(folder: Path) -> str:
    """The one data set in `folder`. Raises DataError where there is none, or a choice."""
    first = {"mnist": IDX["train"][0], "fashion-mnist": IDX["train"][0]}
    first["cifar10"] = CIFAR10["train"][0]
    found = [
        name
        for name, file in first.items()
        if any(path.is_file() for path in _places(name, folder, file))
    ]
    if len(found) == 1:
        return found[0]
    if found:  # the files of MNIST and of Fashion-MNIST have the same names
        raise DataError(f"{folder}: may hold {' or '.join(found)}: say which with --data")
    raise DataError(
        f"{folder}: holds none of {', '.join(FOLDERS)}: say --data digits or --data synthetic, or "
        f"python -m ddptrain fetch mnist --to {folder}"
    )


def indices(
    samples: int, *, seed: int, epoch: int, step: int, global_batch: int, rank: int, world: int
) -> torch.Tensor:
    """The samples (int64) that `rank` of `world` takes in `step` (0-based) of `epoch`.

    One permutation of all samples per epoch is cut into global batches, and each of those is dealt
    out to the ranks like cards. So the global batch does not depend on the number of ranks, and
    nothing needs to be stored to resume at any step. The last batch of an epoch may be smaller;
    a rank's share of it may be empty.
    """
    start = step * global_batch
    return epoch_order(samples, seed, epoch)[start : start + global_batch][rank::world]


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation (int64) in which all samples are taken in `epoch`."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Number of global batches that cover every sample once."""
    return -(-samples // global_batch)


def global_batch_size(samples: int, step: int, global_batch: int) -> int:
    """Samples of all ranks together in `step` (0-based) of an epoch; only the last has fewer."""
    return min(global_batch, samples - step * global_batch)
