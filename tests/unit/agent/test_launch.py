"""torchrun as a function: when it asks for the group's store, and what its record costs."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import ddpjob_agent
from ddpjob_agent.warm import launch
from ddpjob_agent.warm.launch import wait_for_store, wait_until_open
from tests.unit.agent.scripts import fake_torch

HOST = "127.0.0.1"


def options(**fields: object) -> SimpleNamespace:
    """Torchrun's, of node rank 1."""
    given = {"nnodes": "2", "node_rank": 1, "rdzv_backend": "static", "master_addr": HOST}
    return SimpleNamespace(**{**given, "master_port": 29500, **fields})


@pytest.fixture
def closed() -> socket.socket:
    """A socket whose port is taken, and refuses until it listens."""
    found = socket.socket()
    found.bind((HOST, 0))
    return found


def test_a_store_that_opens_later_is_asked_at_once(closed: socket.socket) -> None:
    opened: list[float] = []

    def open_it() -> None:
        opened.append(time.monotonic())
        closed.listen()

    with closed:
        timer = threading.Timer(0.2, open_it)
        timer.start()
        wait_for_store(options(master_port=closed.getsockname()[1]))
        asked = time.monotonic()
        timer.join()
    assert opened[0] < asked


@pytest.mark.parametrize("host", ["nobody.invalid", "a" * 70 + ".invalid"])
def test_what_is_no_refusal_is_left_to_torchrun(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(time, "sleep", sleep)
    wait_until_open(host, 1, pause=0.01)


@pytest.mark.parametrize(
    "given",
    [{"node_rank": 0}, {"rdzv_backend": "c10d"}, {"nnodes": "1:4"}],
    ids=["rank 0", "another rendezvous", "a range of nodes"],
)
def test_only_members_of_a_static_rendezvous_wait(
    given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr(launch, "wait_until_open", wait)
    wait_for_store(options(**given))


# ---- The record

# torchrun, whose workers have all ended well; on a disk that is full by then.
TORCHRUN = """
import os
from types import SimpleNamespace

def parse_args(arguments):
    return SimpleNamespace(
        training_script=arguments[0], module=False, no_python=False,
        node_rank="0", nnodes="1", master_port="1", rdzv_backend="static",
    )

def main(arguments):
    os.symlink("/dev/full", os.path.join(os.environ["DDPJOB_RUN_DIR"], "launch.json.tmp"))
    print("trained")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux'")
def test_a_full_disk_fails_no_training_that_is_done(tmp_path: Path) -> None:
    torch = fake_torch(tmp_path, "distributed/run", TORCHRUN)
    call = "import sys; from ddpjob_agent.warm import launch; launch.launch_torchrun(sys.argv[1:])"
    sources = Path(ddpjob_agent.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", call, __file__],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([torch, str(sources)])}
        | {"DDPJOB_LAUNCHER": "1", "DDPJOB_RUN_DIR": str(tmp_path), "DDPJOB_SUCCESS_POLICY": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert (tmp_path / "launch.json.tmp").is_symlink() and not (tmp_path / "launch.json").exists()
