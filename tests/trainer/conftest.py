"""Start ranks the way users do, with torchrun or with the bare environment; and one in here."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from ddptrain.dist import World, process_group
from tests import agentpod
from tests.agentpod import Pods
from tests.cluster.processes import free_ports
from tests.trainer.forked_ranks import BETWEEN

ROOT = Path(__file__).parents[2]
OURS = ("DDPJOB_", "PET_", "TORCHELASTIC_", "MASTER_")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

Start = Callable[..., "subprocess.Popen[str]"]


def master_port() -> str:
    """A port for a group of ranks: none that an outgoing connection may take meanwhile."""
    (port,) = free_ports(1)
    return str(port)


def clean_environment(**extra: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OURS) and name not in LAUNCHERS
    }
    fixed = {"PYTHONPATH": str(ROOT / "images/trainer"), "OMP_NUM_THREADS": "1"}
    # Without a resolver that answers, c10d warns of each address whose name it cannot find.
    fixed["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    return inherited | fixed | {"DDPJOB_BACKEND": "gloo"} | extra


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Start a Python command line in a session of its own; whatever still runs at the end dies."""
    started = []

    def run(*command: str, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *command],
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def torchrun(start: Start) -> Callable[..., str]:
    """Run `arguments` under torchrun on this machine; returns what it printed, checks its code."""

    def run(processes: int, *arguments: str, code: int = 0, **environment: str) -> str:
        process = start(
            *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
            *arguments,
            **environment,
        )
        output, _ = process.communicate(timeout=280)
        assert process.returncode == code, output
        return output

    return run


@pytest.fixture(scope="session")
def start_ranks(start: Start) -> Callable[..., "list[subprocess.Popen[str]]"]:
    """Start one process per rank with RANK and friends set, as `launcher: python` does."""

    def run(
        world: int, *arguments: str, main: dict[str, str] | None = None
    ) -> "list[subprocess.Popen[str]]":
        """`main` is in the environment of rank 0 alone."""
        group = {
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": master_port(),
        }
        environments = [group | {"RANK": str(rank)} for rank in range(world)]
        environments[0] |= main or {}
        return [start(*arguments, **environment) for environment in environments]

    return run


@pytest.fixture(scope="session")
def fork_ranks(start: Start) -> Callable[..., list[str]]:
    """Train several times in a row with `world` ranks, which are forked from one process.

    A run is a module and its options. Returns what rank 0 printed in each.
    """

    def train(world: int, *runs: Sequence[str], **environment: str) -> list[str]:
        script = str(Path(__file__).with_name("forked_ranks.py"))
        words = [word for run in runs for word in ("--", *run)]
        process = start(script, str(world), *words, MASTER_PORT=master_port(), **environment)
        output, _ = process.communicate(timeout=280)
        assert process.returncode == 0, output
        return output.split(BETWEEN)[1:]

    return train


@pytest.fixture(autouse=True)
def _whole_tracebacks() -> Iterator[None]:
    """The trainers shorten those of errors that explain themselves, for good."""
    yield
    with suppress(AttributeError):
        del sys.tracebacklimit


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher and no job in this process's environment; SIGTERM and the group are put back."""
    for name in os.environ:
        if name.startswith(OURS) or name in LAUNCHERS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("DDPJOB_BACKEND", "gloo")
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # an error in a group replaces it
    yield
    signal.signal(signal.SIGTERM, handler)
    if dist.is_initialized():  # after an error the group is left as it is
        dist.destroy_process_group()


@pytest.fixture
def world(alone: None) -> Iterator[World]:
    """A process group with this process as its only member."""
    with process_group(timeout=timedelta(seconds=60)) as world:
        yield world


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Pods without a cluster, which end with the test."""
    with agentpod.pods(tmp_path) as group:
        yield group
