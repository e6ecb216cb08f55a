"""The options that all levels of the trainer share, and what follows from them."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptrain import precision
from ddptrain.checkpoint import CheckpointFolder
from ddptrain.data import NAMES, data_dir
from ddptrain.dist import World


@dataclass(frozen=True)
class Config:
    """The command line; `parse` says what each option means."""

    data: str
    data_dir: Path | None
    epochs: int
    max_steps: int | None
    batch_size: int
    lr: float
    seed: int
    dropout: bool
    accumulation: int
    precision: str  # a key of precision.NAMES
    checkpoint_dir: Path | None
    checkpoint_every: int
    keep: int
    target_accuracy: float
    timeout_seconds: float
    log_dir: Path | None
    tensorboard: bool
    profile: bool


def open_folder(config: Config, world: World) -> CheckpointFolder | None:
    """The claimed checkpoint folder in the main process, None elsewhere and without one.

    Raises CheckpointError if a later round or attempt has claimed it.
    """
    if config.checkpoint_dir is None or not world.is_main:
        return None
    folder = CheckpointFolder.of(config.checkpoint_dir, world.launch, keep=config.keep)
    folder.claim()
    return folder


def progress_path(world: World) -> Path | None:
    """Where the main process reports; None elsewhere and where nobody asked."""
    path = os.environ.get("DDPJOB_PROGRESS_FILE")
    return Path(path) if path and world.is_main else None


def parse(program: str, arguments: Sequence[str] | None = None) -> Config:
    """The configuration that `arguments` (default: the command line) stand for; exits with 2."""
    folder = os.environ.get("DDPJOB_CHECKPOINT_DIR")
    parser = argparse.ArgumentParser(program, description="Train on small images.")
    add = parser.add_argument
    add("--data", choices=NAMES, default="auto", help="auto: what the data folder holds, or digits")
    add("--data-dir", type=Path, default=data_dir(), help="default: $DDPJOB_DATA_DIR")
    add("--epochs", type=positive, default=20)
    add("--max-steps", type=positive, help="stop after so many optimizer steps in all")
    add("--batch-size", type=positive, default=64, help="samples per step, of all ranks together")
    add("--lr", type=between(0, math.inf), default=1e-3, help="AdamW's learning rate, constant")
    add("--seed", type=seed, default=1, help="of weights, order and dropout")
    add("--no-dropout", action="store_false", dest="dropout", help="to compare world sizes")
    add(
        "--accumulation",
        type=positive,
        default=1,
        help="parts in which each rank takes its share of a batch: less memory; the same result "
        "without dropout, which draws other masks for parts",
    )
    precision.add_options(parser)
    add(
        "--checkpoint-dir",
        type=Path,
        default=Path(folder) if folder else None,
        help="save here and resume from here (default: $DDPJOB_CHECKPOINT_DIR, else neither)",
    )
    add("--checkpoint-every", type=positive, default=100, help="steps between two checkpoints")
    add("--keep", type=positive, default=3, help="checkpoints that stay")
    add(
        "--target-accuracy",
        type=between(0, 1),
        default=0.0,
        help="fail with less on the test set, 0 … 1",
    )
    add(
        "--timeout-seconds",
        type=between(1, 1e6),
        default=300.0,
        help="wait so long for the other ranks",
    )
    add("--log-dir", type=Path, help="keep a history here: history.jsonl, and what follows")
    add("--tensorboard", action="store_true", help="the history for TensorBoard too")
    add("--profile", action="store_true", help="trace three steps of every rank, in DIR/profile")
    # torch.distributed.launch gives it, beside LOCAL_RANK, which is what we read.
    add("--local-rank", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    vars(options).pop("local_rank", None)
    for name in ("tensorboard", "profile"):
        if getattr(options, name) and options.log_dir is None:
            parser.error(f"--{name} needs --log-dir, the folder it writes to")
    return Config(**vars(options))


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    return _whole(text, 1, None)


def seed(text: str) -> int:
    """A whole number of 32 bits, which every library's generator takes, for argparse."""
    return _whole(text, 0, 2**32 - 1)


def _whole(text: str, least: int, most: int | None) -> int:
    bound = f"of at least {least}" if most is None else f"from {least} to {most}"
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or most is not None and value > most:
        raise argparse.ArgumentTypeError(f"must be a whole number {bound}, got {text!r}")
    return value


def between(least: float, most: float) -> Callable[[str], float]:
    """A finite number from `least` to `most`, for argparse."""
    bound = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number {bound}, got {text!r}")
        return value

    return read
