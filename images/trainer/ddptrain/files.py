"""Reads the files in which MNIST, Fashion-MNIST and CIFAR-10 are published, and checks their form.

IDX is the format of MNIST: a magic number, sizes, bytes (described on its authors' page). The
binary version of CIFAR-10 has a label byte and 3 x 32 x 32 pixel bytes for every image. Files may
be gzipped where they lie, with or without `.gz` in their name.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

GZIP = b"\x1f\x8b"
UNSIGNED_BYTES = 8  # IDX's number for the only type that images and labels have
CIFAR_CLASSES = 10
CIFAR_PIXELS = 3 * 32 * 32


class DataError(ValueError):
    """A data file is missing or is not what it should be; the message names it and the rule."""


def read(path: Path) -> bytes:
    """The file's content, unpacked if it is gzipped. Raises DataError."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def parse_idx(content: bytes, path: Path) -> Bytes:
    """The array in an IDX file of unsigned bytes, its shape as the header says.

    Raises DataError, which names `path`.
    """
    if len(content) < 4:
        raise DataError(f"{path}: an IDX file has 4 bytes or more, this one {len(content)}")
    zero, kind, dimensions = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != UNSIGNED_BYTES or dimensions == 0:
        magic = content[:4].hex()
        raise DataError(f"{path}: an IDX file of bytes begins with 000008, this one with {magic}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path}: ends within the IDX header of {start} bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = start + math.prod(shape)
    if len(content) != expected:
        sizes = " x ".join(map(str, shape))
        raise DataError(f"{path}: {sizes} items make {expected} bytes, it has {len(content)}")
    try:
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    except ValueError as error:  # more dimensions than there are, or none of a huge size
        raise DataError(f"{path}: {dimensions} dimensions: {error}") from None


def parse_cifar10(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,) of one file of CIFAR-10's binary version.

    Raises DataError, which names `path`.
    """
    record = 1 + CIFAR_PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"{path}: a file of CIFAR-10's binary version has a multiple of {record} bytes, "
            f"this one {len(content)}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, 0]
    if labels.max() >= CIFAR_CLASSES:
        raise DataError(
            f"{path}: labels of CIFAR-10 are below {CIFAR_CLASSES}, found {labels.max()}"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), labels
