"""A dataset of one's own: each sample once, the same batches for any ranks, workers, resumes."""

import argparse
import importlib.util
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

from ddptrain import rng
from ddptrain.data import indices, steps_per_epoch
from ddptrain.dist import Launch, World
from ddptrain.loaders import MapDataset, Shard, batches, evaluate, evaluation_loader
from ddptrain.native import train_step
from tests.trainer.conftest import ROOT, Start
from tests.trainer.image_files import write_torchvisions
from tests.trainer.training import assert_same_training, saved

# Python 3.12 and later warn of every fork of a process that has threads, as torch's has.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

CPU = torch.device("cpu")
SCRIPT = ROOT / "examples" / "scripts" / "own_dataset.py"

DEALS = [  # samples, ranks, global batch: even or not, last shares that are empty, tiny
    (12, 2, 4),
    (13, 2, 4),
    (1437, 7, 64),
    (1437, 100, 64),
    (66, 3, 64),
    (100, 3, 1000),
    (5, 7, 3),
    (1, 4, 2),
    (1, 1, 1),
]


def member(rank: int, size: int) -> World:
    """A rank without its group: dealing out needs none."""
    return World(
        Launch(rank, size, 0, "gloo", "", 0, launched=True), CPU, cast(Any, None), cast(Any, None)
    )


class Augmented(Dataset[tuple[torch.Tensor, int]]):
    """Image i is a draw from each generator, label i is i; remembers what was loaded."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.loaded.append(index)
        drawn = random.random(), np.random.random(), torch.rand((), dtype=torch.float64).item()
        return torch.tensor(drawn, dtype=torch.float64), index


Batch = tuple[list[Any], list[int]]
"""Images and labels."""


def take(
    dataset: MapDataset,
    *,
    rank: int = 0,
    size: int = 1,
    first_step: int = 0,
    total_steps: int = 9,
    seed: int = 1,
    workers: int = 0,
) -> list[Batch]:
    """This rank's share of batches of 10; of 33 samples, 9 steps are two epochs and a step."""
    taken = batches(
        dataset,
        batch_size=10,
        seed=seed,
        first_step=first_step,
        total_steps=total_steps,
        world=member(rank, size),
        workers=workers,
    )
    return [(images.tolist(), labels.tolist()) for images, labels in taken]


def deal(samples: int, size: int, batch_size: int, epoch: int) -> list[list[list[int]]]:
    """The samples of each rank and step of an epoch."""
    dealt = []
    for rank in range(size):
        world = member(rank, size)
        shard = Shard(Augmented(samples), batch_size=batch_size, seed=1, world=world)
        shard.set_epoch(epoch)
        dealt.append([[draw.sample for draw in share] for share in shard])
        assert len(shard) == len(dealt[-1])
    return dealt


# --- what is dealt out ----------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "size", "batch_size"), DEALS)
def test_each_sample_is_dealt_exactly_once_per_epoch_in_as_many_steps_on_all_ranks(
    samples: int, size: int, batch_size: int
) -> None:
    for epoch in (0, 1, 5):
        dealt = deal(samples, size, batch_size, epoch)
        assert {len(steps) for steps in dealt} == {steps_per_epoch(samples, batch_size)}
        everything = chain.from_iterable(chain.from_iterable(dealt))
        assert sorted(everything) == list(range(samples))


@pytest.mark.parametrize(("samples", "size", "batch_size"), DEALS)
def test_the_global_batch_does_not_depend_on_the_ranks(
    samples: int, size: int, batch_size: int
) -> None:
    many, (one,) = deal(samples, size, batch_size, 3), deal(samples, 1, batch_size, 3)
    for step, whole in enumerate(one):
        assert [share[step] for share in many] == [whole[rank::size] for rank in range(size)]


def test_the_order_changes_with_the_epoch_and_is_that_of_the_other_trainers() -> None:
    epochs = [deal(1437, 3, 64, epoch)[1] for epoch in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    for epoch, steps in enumerate(epochs):
        for step, share in enumerate(steps):
            drawn = indices(1437, seed=1, epoch=epoch, step=step, global_batch=64, rank=1, world=3)
            assert share == drawn.tolist()


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "workers"), [(2, 0), (3, 0), (12, 0), (1, 2), (2, 2)])
def test_the_ranks_get_what_one_would_get_alone_whatever_loads_it(size: int, workers: int) -> None:
    one = take(Augmented(33))
    ranks = [take(Augmented(33), rank=rank, size=size, workers=workers) for rank in range(size)]
    assert {len(taken) for taken in ranks} == {len(one)}
    for step, (images, labels) in enumerate(one):
        for rank, taken in enumerate(ranks):
            assert taken[step] == (images[rank::size], labels[rank::size])
    assert [len(labels) for _, labels in one] == [10, 10, 10, 3, 10, 10, 10, 3, 10]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first_step", [1, 4, 6, 8, 9])
def test_a_resumed_run_gets_the_batches_that_were_left(first_step: int, workers: int) -> None:
    whole = take(Augmented(33), rank=1, size=2)
    left = take(Augmented(33), rank=1, size=2, first_step=first_step, workers=workers)
    assert left == whole[first_step:]


def test_a_resumed_run_does_not_load_what_it_skips() -> None:
    dataset = Augmented(33)
    left = take(dataset, first_step=6)
    assert dataset.loaded == list(chain.from_iterable(labels for _, labels in left))
    assert len(dataset.loaded) == 10 + 3 + 10


@pytest.mark.parametrize("generator", [0, 1, 2], ids=["random", "numpy", "torch"])
def test_each_sample_is_augmented_anew_in_each_epoch_and_with_each_seed(generator: int) -> None:
    drawn = [
        image[generator]
        for seed in (1, 2)
        for rank in (0, 1)
        for images, _ in take(
            Augmented(330), rank=rank, size=2, seed=seed, total_steps=66, workers=rank
        )
        for image in images
    ]
    assert len(drawn) == 2 * 2 * 330
    assert len(set(drawn)) >= len(drawn) - 2  # seeds have 32 bits: chance may make two the same


@pytest.mark.parametrize("workers", [0, 1])
def test_the_random_state_of_the_process_stays_as_it_was(workers: int, world: World) -> None:
    before = rng.get_state(CPU)
    assert len(take(Augmented(33), workers=workers)) == 9
    loader = evaluation_loader(Augmented(33), world=world, workers=workers)
    assert evaluate(torch.nn.Identity(), loader, world)[1] == 33
    assert str(rng.get_state(CPU)) == str(before)
    state = torch.get_rng_state()
    assert torch.equal(state, before["torch"])
    assert random.getstate() == before["python"]


# --- evaluation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("samples", "size"), [(360, 1), (1000, 3), (2, 3)])
def test_each_test_sample_is_taken_exactly_once(samples: int, size: int, workers: int) -> None:
    taken = [
        int(label)
        for rank in range(size)
        for _, labels in evaluation_loader(
            Augmented(samples), world=member(rank, size), workers=workers
        )
        for label in labels
    ]
    assert sorted(taken) == list(range(samples))


def test_the_counts_are_exact_and_the_model_goes_on_training(world: World) -> None:
    class Labelled(Augmented):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.eye(3)[index % 3], index % 2

    net = torch.nn.Dropout(0.9)  # in training it would hide most of the images
    counted = evaluate(net, evaluation_loader(Labelled(1000), world=world), world)
    assert counted == (sum(i % 3 == i % 2 for i in range(1000)), 1000)
    assert net.training


# --- processes that load --------------------------------------------------------------------------

LOADING = """
import multiprocessing, signal, time, torch
from torch.utils.data._utils import worker
worker.MP_STATUS_CHECK_INTERVAL = 1000  # seconds between its own looks for its rank
from ddptrain.dist import process_group
from ddptrain.loaders import batches
from datetime import timedelta
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
dataset = torch.utils.data.TensorDataset(torch.zeros(33), torch.zeros(33))
with process_group(timeout=timedelta(seconds=60)) as world:
    loaded = batches(
        dataset, batch_size=2, seed=1, first_step=0, total_steps=10**9, world=world, workers=1
    )
    for step, _ in enumerate(loaded):
        print("workers", *(child.pid for child in multiprocessing.active_children()), flush=True)
        while len(asked) <= step:
            time.sleep(0.01)
"""


def test_a_worker_outlives_sigterm_to_all_of_its_rank_but_not_the_rank(start: Start) -> None:
    rank = start("-c", LOADING)
    assert rank.stdout
    line = rank.stdout.readline()
    assert re.fullmatch(r"workers \d+\n", line), line
    worker = psutil.Process(int(line.split()[1]))
    for _ in range(10):  # more than the worker had loaded ahead
        os.killpg(rank.pid, signal.SIGTERM)  # as torchrun does
        assert rank.stdout.readline() == line
    rank.kill()
    died = time.monotonic()
    while is_running(worker) and time.monotonic() < died + 60:
        time.sleep(0.01)
    assert not is_running(worker)


def is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- the example ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 and 37 images of noise, as torchvision wants them: unpacked."""
    pytest.importorskip("torchvision")
    folder = tmp_path_factory.mktemp("data")
    write_torchvisions(folder, train=150, test=37)
    return folder


@pytest.fixture
def script(mnist: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_dataset", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_the_example_goes_on_after_a_stop_in_mid_epoch_alone_or_under_torchrun(
    script: ModuleType,
    mnist: Path,
    world: World,
    torchrun: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(folder: str, workers: int) -> int:
        """12 steps, 4 an epoch."""
        options = argparse.Namespace(
            **{"data_dir": str(mnist), "checkpoint_dir": str(tmp_path / folder)},
            **{"epochs": 3, "batch_size": 40, "workers": workers, "seed": 1},
        )
        return int(script.train(options, world))

    def asked_to_stop(*arguments: Any) -> torch.Tensor:
        signal.raise_signal(signal.SIGTERM)
        return train_step(*arguments)

    assert train("whole", 0) == 0
    with monkeypatch.context() as patch:
        patch.setattr(script, "train_step", asked_to_stop)
        assert train("stopped", 1) == 75
    shutil.copytree(tmp_path / "stopped", tmp_path / "two")
    assert train("stopped", 0) == 0
    assert_same_training(saved(tmp_path / "stopped", 12), saved(tmp_path / "whole", 12))

    output = torchrun(
        *(2, str(SCRIPT), "--epochs=3", "--batch-size=40", "--workers=1"),
        DDPJOB_DATA_DIR=str(mnist),
        DDPJOB_CHECKPOINT_DIR=str(tmp_path / "two"),
    )
    assert f"resuming from {tmp_path}/two/step-00000002-attempt-0.pt" in output
    steps = re.findall(r"^step (\d+)/12 loss \d\.\d{4} correct \d+/37$", output, re.MULTILINE)
    assert steps == ["4", "8", "12"]
    result = r"test accuracy 0\.\d{4} \(\d+/37\) after 12 steps"
    assert re.fullmatch(result, output.strip().splitlines()[-1]), output
    assert saved(tmp_path / "two", 12)["world_size"] == 2
