"""A checkpoint's file: complete or not there, and read only if it is what was written."""

import errno
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ddptrain.memory import is_out_of_memory


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or used; the message names the file and the reason."""


class Damaged(Exception):
    """A checkpoint file is not what was written; the message says in what."""


class Writer:
    """A file that remembers its error: torch.save makes "unexpected pos" of a full disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """As the file's own."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """As the file's own."""
        self._file.flush()


def replace(path: Path, write: Callable[[Writer], object]) -> None:
    """Put a file in the place of `path` so that a crash leaves the old one or the new one.

    Raises CheckpointError if it cannot be written: a full disk, a volume that has gone.
    """
    temporary = path.with_name(path.name + ".tmp")
    writer = None
    try:
        with temporary.open("wb") as file:
            writer = Writer(file)
            write(writer)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save makes the latter of the former
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # a part of a file would keep a full disk full
        cause = (writer and writer.error) or error
        raise CheckpointError(
            f"{path} cannot be written: {cause}; the checkpoints before it are as they were"
        ) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:  # some network file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def read(path: Path) -> dict[str, Any]:
    """What is in a checkpoint file, on the CPU.

    torch.load does not compare the checksums that torch.save stores, so a flipped bit in a weight
    would go unnoticed; zipfile does. Raises Damaged; CheckpointError where it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise Damaged(f"wrong checksum in {bad}")
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        if is_out_of_memory(error):  # the file is not to blame
            raise
        raise Damaged(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the file's begin, in a damaged list
            raise Damaged(f"{type(error).__name__}: {error}") from error
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise Damaged(f"a {type(state).__name__}, and no checkpoint")
    return state
