"""Opens files of a folder that others have filled, or change at this moment.

A link, in the place of the file or of a folder above it, could lead to any file of this machine. A
fifo would keep us waiting for ever.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# Of a folder nothing but its files is opened, so the right to list it is not needed where the
# system can do without.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


# What the system says of a link, of a folder or a link above that is none, and of a socket.
_NO_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


class NotPlain(OSError):
    """No file, but a folder, a fifo, a socket, a device, or a link; or a link is above it."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is no plain file")


def open_plain(path: Path) -> BinaryIO:
    """Open the file at an absolute path without links, part by part.

    Raises NotPlain, or another OSError.
    """
    try:
        descriptor = _open(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NotPlain from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain
    return open(descriptor, "rb")


def _open(path: Path) -> int:
    *folders, name = path.relative_to(path.anchor).parts
    place = os.open(path.anchor, _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=place)
            os.close(place)
            place = below
        return os.open(name, _FILE, dir_fd=place)
    finally:
        os.close(place)
