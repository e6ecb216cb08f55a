"""Every example that needs no GPU and no second image trains, on small data of the same format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob.cli.local import LOCK
from tests.cluster.tiers import ROOT
from tests.trainer.image_files import write_cifar10, write_mnist, write_torchvisions
from tests.trainer.local_run import LocalRun

pytestmark = pytest.mark.deep
EXAMPLES = ROOT / "examples"
# What runs elsewhere: on a cluster with its images (tests/e2e), or is rendered only (tests/golden).
ELSEWHERE = {"digits", "digits-checkpoint", "digits-accelerate", "digits-hf", "master"}
RENDERED = {"gpu", "private-registry"}


def cifar10(folder: Path) -> None:
    write_cifar10(folder / "cifar-10-batches-bin", each=40)


def mnist(folder: Path) -> None:
    write_mnist(folder, train=400, test=30)


def torchvisions(folder: Path) -> None:
    write_torchvisions(folder, train=400, test=30)


# Example, what its claim `data` holds, and what it prints at its end when it is cut short.
CASES: dict[str, tuple[Callable[[Path], None] | None, str]] = {
    "mnist": (mnist, "/30) after 2 steps, world size 1"),
    "fashion-mnist": (mnist, "/30) after 2 steps, world size 2"),
    "cifar10": (cifar10, "/40) after 2 steps, world size 1"),
    "synthetic": (None, "/1024) after 2 steps, world size 1"),
    "shared-volume": (mnist, "/30) after 2 steps, world size 1"),
    "own-dataset": (torchvisions, "/30) after 7 steps"),
}


def cut_short(body: dict[str, Any]) -> None:
    """One node, two steps; or one epoch of the script that a ConfigMap brings to a cluster."""
    body["spec"]["nnodes"] = 1
    args = body["spec"]["args"]
    if body["spec"].pop("volumes", None):
        del body["spec"]["volumeMounts"]
        args[0] = args[0].replace("/scripts", str(EXAMPLES / "scripts"))
        args[args.index("--epochs") + 1] = "1"
    else:
        args += ["--max-steps", "2"]


@pytest.mark.parametrize("name", CASES)
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    write, told = CASES[name]
    body = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    cut_short(body)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    if write is not None:
        data = tmp_path / ".ddpjob" / name / "volumes" / "data"
        data.mkdir(parents=True)
        (tmp_path / ".ddpjob" / name / LOCK).touch()
        write(data)
    run = LocalRun(tmp_path, "job.yaml")
    assert run.process.wait(timeout=280) == 0, run.output
    assert told in run.output


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == CASES.keys() | ELSEWHERE | RENDERED
