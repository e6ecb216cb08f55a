"""Checkpoints that survive a crash at any moment, and that a dead attempt cannot overwrite.

`CheckpointFolder` is the part on disk; only the main process uses it. `save` and `load` are called
by all ranks together. The main process reads the file and broadcasts it, so that all ranks load
the same one, and the folder need not be shared between nodes.
"""

import errno
import io
import json
import logging
import os
import pickle
import re
import secrets
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from ddptrain import rng
from ddptrain.dist import World

log = logging.getLogger(__name__)

State = dict[str, Any]
FORMAT = 1
CLAIM = "claim.json"
NAME = re.compile(r"step-(\d+)-attempt-(\d+)\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or used; the message names the file and the reason."""


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one run, written by attempt `attempt` of `job`; the `keep` newest stay."""

    path: Path
    job: str
    attempt: int
    keep: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells this writer from others of the same job and attempt, as runs without a job are."""

    def claim(self) -> None:
        """Make this attempt the folder's writer; earlier ones fail at their next `write`.

        Raises CheckpointError if a later attempt of the same job has claimed the folder.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be a checkpoint folder: {error}") from error
        holder = self._holder()
        if holder is not None and holder["job"] == self.job and holder["attempt"] > self.attempt:
            raise self._stale(holder)
        claim = json.dumps(self._claim).encode()
        _replace(self.path / CLAIM, lambda file: file.write(claim))
        for leftover in self.path.glob("step-*.pt.tmp"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)

    def write(self, step: int, state: State) -> Path:
        """Store `state` durably under `step`, then delete the oldest beyond `keep`.

        Raises CheckpointError if another writer has claimed the folder since, or if the file cannot
        be written, for want of space for example. Two attempts never share a file, as the attempt
        is part of its name, so one that is stopped between this check and its last write still
        destroys nothing of the other's.
        """
        holder = self._holder()
        if holder != self._claim:
            raise self._stale(holder)
        path = self.path / f"step-{step:08d}-attempt-{self.attempt}.pt"
        _replace(path, lambda file: torch.save(state, file))
        for old in self._newest_first()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def read_newest(self) -> bytes | None:
        """Content of the newest complete checkpoint, or None if there has never been one.

        A damaged file is set aside (`.damaged`) with a warning, and the one before is taken.
        Raises CheckpointError if all are damaged: starting again from step 0 would go unnoticed. So
        it does at every further start, as then none is set aside.
        """
        damaged: list[Path] = []
        for path in self._newest_first():
            content = path.read_bytes()
            damage = _damage(content)
            if damage is None:
                for bad in damaged:
                    bad.rename(bad.with_name(bad.name + ".damaged"))
                log.info("resuming from %s", path)
                return content
            log.warning("%s is damaged (%s): taking the one before", path, damage)
            damaged.append(path)
        if damaged:
            raise CheckpointError(
                f"{self.path}: every checkpoint is damaged ({len(damaged)} files); to begin anew, "
                "remove them or use another folder"
            )
        return None

    @property
    def _claim(self) -> State:
        return {"job": self.job, "attempt": self.attempt, "token": self.token}

    def _holder(self) -> State | None:
        path = self.path / CLAIM
        try:
            holder = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        kinds = {"job": str, "attempt": int}
        if not isinstance(holder, dict) or any(
            not isinstance(holder.get(name), kind) for name, kind in kinds.items()
        ):
            raise CheckpointError(f"{path} is no claim: {holder!r}; remove it to go on")
        return holder

    def _newest_first(self) -> list[Path]:
        found = [(NAME.fullmatch(path.name), path) for path in self.path.iterdir()]
        named = [(int(m[1]), int(m[2]), path) for m, path in found if m]  # step, attempt
        return [path for _, _, path in sorted(named, reverse=True)]

    def _stale(self, holder: State | None) -> CheckpointError:
        def name(job: str, attempt: int) -> str:
            return f"attempt {attempt} of {repr(job) if job else 'a run without a job'}"

        other = "nobody" if holder is None else name(holder["job"], holder["attempt"])
        return CheckpointError(
            f"{self.path} belongs to {other}, no longer to {name(self.job, self.attempt)}: "
            "this process is a leftover, or two runs share the folder"
        )


def is_kept(folder: CheckpointFolder | None, world: World) -> bool:
    """Whether the main process has a folder, on all ranks alike; the others need not see it."""
    flag = torch.tensor([int(folder is not None)])
    dist.broadcast(flag, src=0, group=world.control)
    return bool(flag.item())


def save(
    folder: CheckpointFolder | None,
    world: World,
    *,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    config: State,
) -> None:
    """Store the state after `step` steps; all ranks call it, and it is on disk when it returns.

    `model` is the bare module, without DDP. Raises CheckpointError: on the main process as `write`
    does; on all ranks if a weight is NaN or infinite, so that no good checkpoint goes for it.
    """
    if not all(bool(t.isfinite().all()) for t in model.state_dict().values()):
        raise CheckpointError(
            f"after step {step} weights are NaN or infinite: not saved, and the checkpoints before "
            "it are as they were (a smaller --lr?)"
        )
    states: list[Any] | None = [None] * world.size if world.is_main else None
    dist.gather_object(rng.get_state(world.device), states, group=world.control)
    if folder is not None:
        state = {
            "format": FORMAT,
            "step": step,
            "world_size": world.size,
            "attempt": folder.attempt,
            "config": config,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": states,
        }
        log.info("saved %s", folder.write(step, state))
    dist.barrier(group=world.control)


def load(
    folder: CheckpointFolder | None,
    world: World,
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    config: State,
) -> int:
    """Restore the newest checkpoint on all ranks and return its step; 0 if there is none.

    With the world size of the checkpoint, every rank gets its random state back, and training goes
    on bit by bit as if it had never stopped; with another, each rank draws new dropout masks.
    The optimizer's settings, such as its learning rate, stay this run's own.
    Raises CheckpointError if the checkpoint was made with another `config`.
    """
    content = _broadcast(folder.read_newest() if folder is not None else None, world)
    if content is None:
        return 0
    state: State = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint format is {state['format']}, this version reads {FORMAT}"
        )
    for name, value in config.items():
        if state["config"].get(name) != value:
            raise CheckpointError(
                f"checkpoint of step {state['step']} was made with "
                f"{name}={state['config'].get(name)!r}, this run has {value!r}: "
                "use the same value or another checkpoint folder"
            )
    model.load_state_dict(state["model"])
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    step: int = state["step"]
    if state["world_size"] == world.size:
        rng.set_state(state["rng"][world.rank], world.device)
    else:
        log.info("world size was %d, is %d: new random states", state["world_size"], world.size)
        rng.seed_all(config["seed"], step, world.rank)
    return step


def _broadcast(content: bytes | None, world: World) -> bytes | None:
    """`content` of the main process, on every rank."""
    length = torch.tensor([-1 if content is None else len(content)])
    dist.broadcast(length, src=0, group=world.control)
    if length.item() < 0:
        return None
    received = torch.empty(int(length.item()), dtype=torch.uint8)
    if content is not None:
        received = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(received, src=0, group=world.control)
    return received.numpy().tobytes()


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put a file in the place of `path` so that a crash leaves the old one or the new one.

    Raises CheckpointError if it cannot be written: a full disk, a volume that has gone.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save makes the latter of the former
        temporary.unlink(missing_ok=True)  # a part of a file would keep a full disk full
        raise CheckpointError(
            f"{path} cannot be written: {error}; the checkpoints before it are as they were"
        ) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:  # some network file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def _damage(content: bytes) -> str | None:
    """What is wrong with a checkpoint file, None if nothing.

    torch.load does not compare the checksums that torch.save stores, so a flipped bit in a weight
    would go unnoticed; zipfile does.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            bad = archive.testzip()
        if bad is not None:
            return f"wrong checksum in {bad}"
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        return f"{type(error).__name__}: {error}"
    return None
