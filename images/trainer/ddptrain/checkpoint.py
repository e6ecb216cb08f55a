"""Checkpoints that survive a crash at any moment, and that a dead round cannot overwrite.

`CheckpointFolder` is the part on disk; only the main process uses it. `save` and `load` are called
by all ranks together. The main process reads the file and broadcasts what is in it, so that all
ranks load the same, and the folder need not be shared between nodes. Each rank has what it loads in
memory once.
"""

import json
import logging
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.amp import GradScaler

from ddptrain import rng
from ddptrain.checkpoint_file import CheckpointError, Damaged, read, replace
from ddptrain.dist import Launch, World, barrier
from ddptrain.sharing import State, outline, share

log = logging.getLogger(__name__)

FORMAT = 1
CLAIM = "claim.json"
CLAIM_BYTES = 4096  # of the largest claim that is read: ours have 250
NAME = re.compile(r"step-(\d+)-attempt-(\d+)(?:-round-(\d+))?\.pt")


def _this_process() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"process {os.getpid()} on {socket.gethostname()}, started to train at {now}"


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one run, written by a round of an attempt of `job`.

    The `keep` newest stay. Of two writers the later one has the higher attempt, or the higher round
    of the same attempt.
    """

    path: Path
    job: str
    attempt: int
    keep: int
    round: int = field(default=0, kw_only=True)
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells this writer from others of the same job and round, as runs without a job are."""
    writer: str = field(default_factory=_this_process)
    """The same for people."""

    @classmethod
    def of(cls, path: Path, launch: Launch, *, keep: int) -> "CheckpointFolder":
        """The folder at `path` for the process that was launched so."""
        return cls(path, launch.job, launch.attempt, keep, round=launch.round)

    def claim(self) -> None:
        """Make this round the folder's writer; earlier ones fail at their next `write`.

        Raises CheckpointError if a later round or attempt of the same job has claimed the folder.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be a checkpoint folder: {error}") from error
        holder = self._holder()
        if holder is not None and holder["job"] == self.job and _age(holder) > _age(self._claim):
            raise self._stale(holder)
        claim = json.dumps(self._claim).encode()
        replace(self.path / CLAIM, lambda file: file.write(claim))
        for leftover in self.path.glob("step-*.pt.tmp"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)

    def write(self, step: int, state: State) -> Path:
        """Store `state` durably under `step`, then delete the oldest beyond `keep`.

        Raises CheckpointError if another writer has claimed the folder since, or if the file cannot
        be written, for want of space for example. Two rounds never share a file, as attempt and
        round are part of its name, so one that is stopped between this check and its last write
        still destroys nothing of the other's.
        """
        holder = self._holder()
        if holder != self._claim:
            raise self._stale(holder)
        suffix = f"-round-{self.round}" if self.round else ""
        path = self.path / f"step-{step:08d}-attempt-{self.attempt}{suffix}.pt"
        replace(path, lambda file: torch.save(state, file))  # type: ignore[arg-type]  # only writes
        for old in self._newest_first()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def read_newest(self) -> State | None:
        """What is in the newest complete checkpoint, or None if there has never been one.

        A damaged file is set aside (`.damaged`) with a warning, and the one before is taken.
        Raises CheckpointError if all are damaged: starting again from step 0 would go unnoticed. So
        it does at every further start, as then none is set aside.
        """
        damaged: list[Path] = []
        for path in self._newest_first():
            try:
                state = read(path)
            except Damaged as error:
                log.warning("%s is damaged (%s): taking the one before", path, error)
                damaged.append(path)
                continue
            for bad in damaged:
                bad.rename(bad.with_name(bad.name + ".damaged"))
            log.info("resuming from %s", path)
            return state
        if damaged:
            raise CheckpointError(
                f"{self.path}: every checkpoint is damaged ({len(damaged)} files); to begin anew, "
                "remove them or use another folder"
            )
        return None

    @property
    def _claim(self) -> State:
        names = ("job", "attempt", "round", "token", "writer")
        return {name: getattr(self, name) for name in names}

    def _holder(self) -> State | None:
        path = self.path / CLAIM
        try:
            with path.open("rb") as file:
                content = file.read(CLAIM_BYTES + 1)
            holder = json.loads(content) if len(content) <= CLAIM_BYTES else content
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if isinstance(holder, dict):
            holder.setdefault("round", 0)  # earlier versions had none
        kinds = {"job": str, "attempt": int, "round": int}
        if not isinstance(holder, dict) or any(
            not isinstance(holder.get(name), kind) for name, kind in kinds.items()
        ):
            raise CheckpointError(f"{path} is no claim: {repr(holder)[:80]}; remove it to go on")
        return holder

    def _newest_first(self) -> list[Path]:
        found = [(NAME.fullmatch(path.name), path) for path in self.path.iterdir()]
        named = [([int(part or 0) for part in m.groups()], path) for m, path in found if m]
        return [path for _, path in sorted(named, reverse=True)]  # by step, attempt and round

    def _stale(self, holder: State | None) -> CheckpointError:
        owner = "nobody" if holder is None else _name(holder)
        return CheckpointError(
            f"{self.path} belongs to {owner}, and this is {_name(self._claim)}: a leftover, or two "
            "runs share the folder"
        )


def _age(claim: State) -> tuple[int, int]:
    """Orders the claims of a job."""
    return claim["attempt"], claim["round"]


def _name(claim: State) -> str:
    """Whose `claim` it is; those of earlier versions have no writer."""
    job = repr(claim["job"]) if claim["job"] else "a run without a job"
    writer = claim.get("writer", "a process that it does not name")
    attempt, number = _age(claim)
    part = f"round {number} of attempt {attempt}" if number else f"attempt {attempt}"
    return f"{part} of {job} ({writer})"


def is_kept(folder: CheckpointFolder | None, world: World) -> bool:
    """Whether the main process has a folder, on all ranks alike; the others need not see it."""
    flag = torch.tensor([int(folder is not None)])
    dist.broadcast(flag, src=0, group=world.disk)
    return bool(flag.item())


def save(
    folder: CheckpointFolder | None,
    world: World,
    *,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler | None = None,
    config: State,
) -> None:
    """Store the state after `step` steps; all ranks call it, and it is on disk when it returns.

    `model` is the bare module, without DDP. Raises CheckpointError: on the main process as `write`
    does; on all ranks if a weight is NaN or infinite, so that no good checkpoint goes for it.
    """
    if not is_finite(model):
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
            "round": folder.round,
            "config": config,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler else {},
            "rng": states,
        }
        log.info("saved %s", folder.write(step, state))
    barrier(world.disk)


def is_finite(model: torch.nn.Module) -> bool:
    """Whether no weight is NaN or infinite. A GPU is asked once for all of them."""
    with torch.no_grad():
        finite = [tensor.isfinite().all() for tensor in model.state_dict().values()]
    return not finite or bool(torch.stack(finite).all())


def load(
    folder: CheckpointFolder | None,
    world: World,
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler | None = None,
    config: State,
) -> int:
    """Restore the newest checkpoint on all ranks and return its step; 0 if there is none.

    With the world size and the kind of device of the checkpoint, every rank gets its random state
    back, and training goes on bit by bit as if it had never stopped; with another, each rank draws
    new dropout masks.
    The optimizer's settings, such as its learning rate, stay this run's own.
    Raises CheckpointError if the checkpoint was made with another `config`.
    """
    state = outline(folder.read_newest() if folder is not None else None, world)
    if state is None:
        return 0
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint format is {state.get('format')!r}, this version reads {FORMAT}"
        )
    for name, value in config.items():
        if state["config"].get(name) != value:
            raise CheckpointError(
                f"checkpoint of step {state['step']} was made with "
                f"{name}={state['config'].get(name)!r}, this run has {value!r}: "
                "use the same value or another checkpoint folder"
            )
    model.load_state_dict(share(state.pop("model"), world))
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    optimizer.load_state_dict(share(state.pop("optimizer"), world))
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    if scaler and state.get("scaler"):  # else of a run without float16, or of an earlier version
        scaler.load_state_dict(state["scaler"])
    step: int = state["step"]
    if state["world_size"] != world.size:
        log.info("world size was %d, is %d: new random states", state["world_size"], world.size)
    elif not rng.fits(own := state["rng"][world.rank], world.device):
        log.info("the checkpoint is not from a %s: new random states", world.device.type)
    else:
        rng.set_state(own, world.device)
        return step
    rng.seed_all(config["seed"], step, world.rank)
    return step
