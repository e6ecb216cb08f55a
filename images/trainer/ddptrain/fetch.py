"""Downloads a data set, when asked to: `python -m ddptrain fetch mnist --to DIR`.

The trainers never do, since N pods would download N times. What is fetched lies where torchvision
looks for MNIST and Fashion-MNIST below DIR, unpacked as it wants them. Every sum is checked before
a file gets its name, so a broken download leaves nothing behind that could be taken for data, and
what is there already is not fetched again.
"""

import argparse
import gzip
import hashlib
import http.client
import shutil
import signal
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptrain.data import CIFAR10, FOLDERS, data_dir
from ddptrain.files import CIFAR_PIXELS

TIMEOUT_SECONDS = 60.0  # without a byte
CHUNK = 2**20


class FetchError(RuntimeError):
    """A file cannot be had; the message names it, where it was looked for and why."""


@dataclass(frozen=True)
class Source:
    """Where a data set is published, and the MD5 sums that its publishers give."""

    url: str
    sums: Mapping[str, str]  # file -> MD5, in hexadecimal digits


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    ),
}


def fetch(name: str, folder: Path, *, url: str | None = None) -> list[Path]:
    """Put the files of data set `name` into `folder`; `url` is a mirror that has the same files.

    Returns those that were not there yet. Raises FetchError.
    """
    source, place = SOURCES[name], folder / FOLDERS[name]
    place.mkdir(parents=True, exist_ok=True)
    fetched = []
    for file, md5 in source.sums.items():
        archive = file.endswith(".tar.gz")
        members = CIFAR10["train"] + CIFAR10["test"] if archive else (file.removesuffix(".gz"),)
        wanted = members if archive else (file, *members)  # what is packed has the sum to check
        if all(_is_there(place / part, md5 if part == file else None) for part in wanted):
            continue
        # Beside the target, so that the last step is a rename.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place) as scratch:
            path = Path(scratch) / file
            _download(f"{url or source.url}/{file}", path, md5)
            if archive:
                _unpack_archive(path, members)
            else:
                _unpack(path)
            for part in wanted:
                path.with_name(part).replace(place / part)
                fetched.append(place / part)
    return fetched


def _is_there(path: Path, md5: str | None) -> bool:
    """Whether the file is there and whole: by its sum, or, unpacked, by its size."""
    if not path.is_file():
        return False
    if md5 is not None:
        return _md5(path) == md5
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file():  # its last four bytes are the size of its content (RFC 1952)
        return path.stat().st_size == int.from_bytes(packed.read_bytes()[-4:], "little")
    size = path.stat().st_size
    return size > 0 and size % (1 + CIFAR_PIXELS) == 0  # a label and an image each


def _download(url: str, path: Path, md5: str) -> None:
    """`url` in `path`, checked."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer, path.open("wb") as out:
            shutil.copyfileobj(answer, out, CHUNK)
    except (OSError, http.client.HTTPException, ValueError) as error:  # OSError: also URLError …
        raise FetchError(f"{url}: {error} (--url names a mirror)") from None
    if (found := _md5(path)) != md5:
        size = path.stat().st_size
        raise FetchError(f"{url}: its MD5 sum must be {md5}, is {found} ({size} bytes)")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(path: Path) -> None:
    """A .gz file's content, beside it."""
    with gzip.open(path) as content, path.with_suffix("").open("wb") as out:
        shutil.copyfileobj(content, out, CHUNK)


def _unpack_archive(archive: Path, wanted: Sequence[str]) -> None:
    """The `wanted` members, whatever folder they have there, beside the archive."""
    with tarfile.open(archive) as content:
        for member in content:
            name = Path(member.name).name
            if name in wanted and (source := content.extractfile(member)) is not None:
                with source, archive.with_name(name).open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK)
    if missing := [name for name in wanted if not archive.with_name(name).is_file()]:
        raise FetchError(f"{archive.name}: has no {', '.join(missing)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m ddptrain fetch`; returns the exit code."""
    parser = argparse.ArgumentParser("python -m ddptrain fetch", description="Download a data set.")
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument(
        "--to", type=Path, default=data_dir(), help="folder (default: $DDPJOB_DATA_DIR)"
    )
    parser.add_argument("--url", help="a mirror's folder with the same files")
    options = parser.parse_args(arguments)
    if options.to is None:
        parser.error("the following arguments are required: --to, or $DDPJOB_DATA_DIR")
    # So that SIGTERM, such as a pod's end, takes what was begun away as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        fetched = fetch(options.name, options.to, url=options.url)
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in fetched:
        print(f"fetched {path} ({path.stat().st_size} bytes)")
    if not fetched:
        print(f"{options.name} is in {options.to} already")
    return 0
