import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ddptrain import fetch
from ddptrain.__main__ import main
from ddptrain.data import load
from ddptrain.fetch import FetchError, Source
from tests.trainer.image_files import write_cifar10, write_mnist


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of data sets of noise, whose sums are taken for the published ones."""
    served = tmp_path / "served"
    write_mnist(served)
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    with tarfile.open(served / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in served.iterdir()}
    for name, source in fetch.SOURCES.items():
        known = {file: sums[file] for file in source.sums}
        monkeypatch.setitem(fetch.SOURCES, name, Source(source.url, known))
    Quiet.asked = []
    handler = functools.partial(Quiet, directory=served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_what_was_fetched_can_be_loaded_and_is_not_fetched_again(
    mirror: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    arguments = ["fetch", name, "--to", str(folder), "--url", mirror]
    assert main(arguments) == 0
    assert f"fetched {folder}" in capsys.readouterr().out
    assert load("auto", folder, torch.device("cpu")).name == name
    asked = list(Quiet.asked)
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{name} is in {folder} already\n"
    assert Quiet.asked == asked
    assert not list(folder.rglob(".fetch-*"))


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_torchvision_finds_what_was_fetched(mirror: str, tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    folder = tmp_path / "data"
    fetch.fetch({"MNIST": "mnist", "FashionMNIST": "fashion-mnist"}[name], folder, url=mirror)
    found = getattr(datasets, name)(folder, train=False)
    assert len(found) == len(load("auto", folder, torch.device("cpu")).test)


def test_a_wrong_sum_leaves_nothing(
    mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "served" / "train-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1])
    folder = tmp_path / "data"
    assert main(["fetch", "mnist", "--to", str(folder), "--url", mirror]) == 1
    told = capsys.readouterr().err
    assert "train-labels-idx1-ubyte.gz: its MD5 sum must be " in told
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "train-images-idx3-ubyte",
        "train-images-idx3-ubyte.gz",
    ]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_damaged_unpacked_file_is_fetched_again(mirror: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "own"
    fetched = fetch.fetch(name, folder, url=mirror)
    path = next(path for path in fetched if path.suffix != ".gz")
    path.write_bytes(b"")
    assert path in fetch.fetch(name, folder, url=mirror)
    assert path.stat().st_size > 0 and fetch.fetch(name, folder, url=mirror) == []


def test_what_is_not_there_is_said(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"/nowhere/train-images.*: HTTP Error 404"):
        fetch.fetch("mnist", tmp_path, url=f"{mirror}/nowhere")
    with pytest.raises(FetchError, match="Connection refused"):
        fetch.fetch("mnist", tmp_path, url="http://127.0.0.1:1")


def test_an_archive_without_the_files_is_refused(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "served" / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        content.addfile(tarfile.TarInfo("../data_batch_1.bin"), io.BytesIO())
    known = {archive.name: hashlib.md5(archive.read_bytes()).hexdigest()}
    monkeypatch.setitem(fetch.SOURCES, "cifar10", Source("", known))
    with pytest.raises(FetchError, match=r"has no data_batch_2.bin, .*test_batch.bin"):
        fetch.fetch("cifar10", tmp_path / "data", url=mirror)
    assert not list((tmp_path / "data").rglob("*.bin"))
