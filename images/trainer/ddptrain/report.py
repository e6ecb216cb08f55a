"""What a training says of itself: log, progress file, history, TensorBoard, profile, memory.

The same for all levels: a level calls `begin` once, takes its batches through `timed`, calls `step`
after each optimizer step, `evaluated` after each epoch and `finish` at the end. It evaluates and
saves within `paused`.

The loss is the mean over the samples that the epoch has had so far, or the part of it since the run
was resumed. Within an epoch it is that of rank 0's samples, every W-th; at its end, of all ranks'.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.amp import GradScaler

from ddptrain import memory
from ddptrain.checkpoint import is_finite
from ddptrain.config import Config, progress_path
from ddptrain.dist import World
from ddptrain.history import HistoryFile, Sink, TensorBoardLog
from ddptrain.progress import ProgressFile
from ddptrain.straggler import Straggler
from ddptrain.timing import Pace, Stopwatch

MEMORY_SECONDS = 5.0  # between two looks at the memory
Batch = TypeVar("Batch")

log = logging.getLogger("ddptrain")


class AccuracyMissed(RuntimeError):
    """The trained model is worse than --target-accuracy."""


class Diverged(RuntimeError):
    """The loss or a weight is NaN or infinite, or the gradients always are: nothing is learned."""


class Report:
    """One rank's reports; rank 0 alone writes them, but all of them count and all call it."""

    def __init__(self, config: Config, world: World) -> None:
        self._config, self._world = config, world
        self._cleanup = ExitStack()
        self._sinks: list[Sink] = []
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._scaler: GradScaler | None = None
        self._profiled: Callable[[], None] | None = None
        self._metrics: dict[str, float] = {}
        self._straggler = Straggler()
        self._pace, self._watch = Pace(world.device), Stopwatch()
        self._memory_next = 0.0
        self._memory_warned = False

    def __enter__(self) -> "Report":
        if self._world.is_main:
            for sink in sinks(self._config, self._world):
                self._sinks.append(sink)
                self._cleanup.callback(_close, sink)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if error is not None and memory.is_out_of_memory(error):
            log.error(memory.report(self._world.device, self._model, self._optimizer))
        self._cleanup.close()

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: GradScaler | None = None,
        *,
        epoch_steps: int,
        total_steps: int,
    ) -> None:
        """The loop starts now; `model` is what its steps call."""
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._epoch_steps, self._total_steps = epoch_steps, total_steps
        self._train_loss: float | None = None
        self._speed: float | None = None
        self._began = time.perf_counter()
        self._begin_epoch()
        if self._config.profile and self._config.log_dir:
            self._profile(self._config.log_dir / "profile")

    def _begin_epoch(self) -> None:
        # Of this rank's samples; in float64, or a long epoch would round its last batches away.
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._world.device)
        self._counted: int | torch.Tensor = 0  # these samples
        self._seen = 0  # samples, over all ranks
        self._waited = 0.0  # seconds, for data
        self._watch.restart()

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """`batches`, and the time that each takes to come."""
        iterator = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waited += time.perf_counter() - asked
            yield batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block is not the training's: evaluation, a checkpoint."""
        self._pace.catch_up()  # what a GPU still has to do is
        with self._watch.paused():
            yield

    def step(
        self, done: int, loss: torch.Tensor, counted: int | torch.Tensor, batch_size: int
    ) -> None:
        """Optimizer step number `done` is behind us.

        `loss` is the sum over this rank's `counted` samples, of `batch_size` over all ranks.
        """
        self._loss_sum += loss
        self._counted = self._counted + counted
        self._seen += batch_size
        self._pace.step()
        if self._profiled is not None:
            self._profiled()
        if time.monotonic() >= self._memory_next:
            self._look_at_memory()
        due = [sink for sink in self._sinks if sink.due()]
        if due:  # only now a loss is read off the GPU
            mean = float(self._loss_sum) / max(1, int(self._counted))
            self._write(due, done, mean, self._samples_per_second())

    def epoch_ends(self, done: int) -> bool:
        """Whether it is time to evaluate, after `done` steps."""
        return done % self._epoch_steps == 0 or done == self._total_steps

    def evaluated(self, done: int, correct: int, tested: int) -> None:
        """After `done` steps `correct` of `tested` samples are right; all ranks call it.

        Raises Diverged, on all ranks, after what there is to see has been reported.
        """
        self._speed = self._samples_per_second()
        dist.all_reduce(self._loss_sum)
        self._train_loss = float(self._loss_sum) / max(1, self._seen)
        self._metrics["test_accuracy"] = correct / tested
        self._write(self._sinks, done, self._train_loss, self._speed)
        log.info(
            f"epoch {-(-done // self._epoch_steps)}/{self._config.epochs} "
            f"step {done}/{self._total_steps} train loss {self._train_loss:.4f} "
            f"test accuracy {correct / tested:.4f} {self._speed:.0f} samples/s"
        )
        assert self._model is not None
        if not (math.isfinite(self._train_loss) and is_finite(self._model)):
            raise Diverged(
                f"by step {done} the loss or a weight is NaN or infinite, loss "
                f"{self._train_loss:.4g}: no further training mends that (a smaller --lr?)"
            )
        if self._scaler and self._scaler.get_scale() == 0:
            raise Diverged(
                f"by step {done} the gradients were NaN or infinite at every scale of --fp16, down "
                "to 0: no further training mends that (--bf16, or a smaller --lr?)"
            )
        if slow := self._straggler.hint(self._model, self._world):
            log.info(slow)
        self._begin_epoch()

    def finish(self, correct: int, tested: int) -> None:
        """The last line. Raises AccuracyMissed if the model is worse than was asked for."""
        accuracy = correct / tested
        self._metrics["test_accuracy"] = accuracy
        self._write(self._sinks, self._total_steps, self._train_loss, self._speed)
        log.info(
            f"test accuracy {accuracy:.4f} ({correct}/{tested}) after {self._total_steps} steps, "
            f"world size {self._world.size}, {time.perf_counter() - self._began:.1f} s"
        )
        target = self._config.target_accuracy
        if accuracy < target:
            raise AccuracyMissed(f"test accuracy {accuracy:.4f} is below {target}")

    def _samples_per_second(self) -> float:
        return self._seen / max(1e-9, self._watch.seconds)

    def _write(
        self, sinks: list[Sink], done: int, loss: float | None, samples_per_second: float | None
    ) -> None:
        if self._seen:
            share = self._waited / max(1e-9, self._watch.seconds)
            self._metrics["data_wait_percent"] = round(100 * share, 1)
        for sink in list(sinks):
            try:
                sink.write(
                    step=done,
                    total_steps=self._total_steps,
                    epoch=round(done / self._epoch_steps, 3),
                    loss=loss,
                    samples_per_second=samples_per_second,
                    metrics=self._metrics,
                )
            except OSError as error:  # no report is worth a training
                log.warning(f"{type(sink).__name__}: {error}; no further reports there")
                self._sinks.remove(sink)

    def _look_at_memory(self) -> None:
        self._memory_next = time.monotonic() + MEMORY_SECONDS
        now = memory.measure(self._world.device)
        if now is None:
            return
        self._metrics["memory_bytes"] = now.used
        self._metrics["memory_percent"] = round(100 * now.share, 1)
        if now.share > memory.WARN_ABOVE and not self._memory_warned:
            self._memory_warned = True
            log.warning(
                f"rank {self._world.rank}: memory is nearly used up: {now}; --accumulation takes "
                "the batch in parts, for the same result without dropout"
            )

    def _profile(self, folder: Path) -> None:
        """Trace five steps: one passes, one warms up, three are recorded, on every rank."""
        from torch.profiler import profile, schedule, tensorboard_trace_handler

        name = f"rank-{self._world.rank}"
        profiler = profile(
            schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
            on_trace_ready=tensorboard_trace_handler(str(folder), name, use_gzip=True),
            acc_events=True,
        )
        self._cleanup.enter_context(profiler)
        self._profiled = profiler.step


def _close(sink: Sink) -> None:
    with suppress(OSError):  # what it says of a full disk, it has said before
        sink.close()


def sinks(config: Config, world: World) -> Iterator[Sink]:
    """Where the main process reports. Raises LogDirError if that cannot be had."""
    if path := progress_path(world):
        yield ProgressFile(path)
    if config.log_dir is not None:
        launch = world.launch
        yield HistoryFile(config.log_dir / "history.jsonl", launch.attempt, launch.round)
        if config.tensorboard:
            yield TensorBoardLog(config.log_dir / "tensorboard")
