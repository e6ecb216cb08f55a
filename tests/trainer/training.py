"""What a training prints and leaves behind, and whether two of them were the same."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

EPOCH_STEPS = 23  # 1437 samples in batches of 64
# The last line of a training.
RESULT = re.compile(r"test accuracy (0\.\d{4}) \((\d+)/360\) after (\d+) steps, world size (\d+)")
Torchrun = Callable[..., str]
Trained = tuple[Path, str]
"""The checkpoint folder, and what was printed."""
StartRanks = Callable[..., "list[subprocess.Popen[str]]"]


def saved(folder: Path, step: int) -> dict[str, Any]:
    """The checkpoint of this step."""
    (path,) = folder.glob(f"step-{step:08d}-attempt-*.pt")
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def run_of(module: str, steps: int, folder: Path) -> tuple[str, ...]:
    """So many steps with these checkpoints, for `fork_ranks`."""
    return module, f"--max-steps={steps}", f"--checkpoint-dir={folder}"


def same_bits(one: Any, other: Any) -> bool:
    """Equal down to the last bit, through all containers."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)


def assert_same_training(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Both checkpoints have the same weights, optimizer, scale of the loss and random numbers."""
    for part in ("model", "optimizer", "scaler", "rng"):
        assert same_bits(one[part], other[part]), part


def drift(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference between two weights."""
    return float(differences(one, other).max())


def differences(one: dict[str, Any], other: dict[str, Any]) -> torch.Tensor:
    """Between the weights of two checkpoints, all in one row, none below 0."""
    pairs = ((one["model"][name], other["model"][name]) for name in one["model"])
    return torch.cat([(mine - yours).abs().flatten() for mine, yours in pairs])


def losses(output: str) -> list[float]:
    """The train loss of each epoch, over all ranks."""
    return [float(loss) for loss in re.findall(r"train loss (\d+\.\d{4})", output)]


def accuracies(output: str) -> list[str]:
    """The test accuracy of each epoch, as printed."""
    return re.findall(r"test accuracy (\d\.\d{4})", output)
