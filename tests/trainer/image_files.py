"""Small image data sets, packed as their publishers pack them."""

import gzip
import struct
from pathlib import Path

import numpy as np

from ddptrain import data


def idx(array: np.ndarray) -> bytes:
    """`array` of bytes as an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, train: int = 20, test: int = 10, seed: int = 0) -> None:
    """Files like MNIST's, of noise; gzipped, as they are published."""
    noise = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", train), ("t10k", test)):
        images = noise.integers(0, 256, (size, 28, 28), np.uint8)
        labels = noise.integers(0, 10, size, np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def write_torchvisions(folder: Path, *, train: int, test: int) -> None:
    """The same where torchvision looks for them, unpacked."""
    raw = folder / "MNIST" / "raw"
    write_mnist(raw, train=train, test=test)
    for path in list(raw.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def write_cifar10(folder: Path, *, each: int = 4) -> None:
    noise = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in (*data.CIFAR10["train"], *data.CIFAR10["test"]):
        records = noise.integers(0, 256, (each, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
