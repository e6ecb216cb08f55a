"""The training of `ddptrain.native` with Hugging Face's Trainer: same data order, same numbers.

    python -m ddptrain.hf                                     # one process
    torchrun --standalone --nproc-per-node 2 -m ddptrain.hf   # two processes

The loop is the Trainer's. What is ours is what it cannot know or does otherwise: the loss, the
order of the data, AdamW on all parameters, a constant learning rate, no clipping of gradients, and
what happens after a step (`AfterStep`). Options, checkpoints and output are those of `native`, and
each can resume from the other's checkpoint.
"""

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ddptrain import checkpoint, rng
from ddptrain.accelerated import use_scaler
from ddptrain.config import Config, open_folder
from ddptrain.data import Samples, epoch_order, global_batch_size, load, sent, steps_per_epoch
from ddptrain.dist import LaunchError, World, leave
from ddptrain.entry import PREEMPTED_AND_SAVED, TERMINATED, run
from ddptrain.model import network
from ddptrain.native import warm_up
from ddptrain.precision import make_scaler
from ddptrain.preemption import StopVote
from ddptrain.report import Report
from ddptrain.sharing import State

IGNORED = -100  # a label that neither torch's losses nor the Trainer counts

log = logging.getLogger("ddptrain")


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    """Train, evaluate and save; returns the exit code, the same on all ranks."""
    # Data: the loader yields global batches, of which Accelerate gives every rank a slice.
    data = load(config.data, config.data_dir, world.device)
    log.info(f"data: {data}")
    train_size = len(data.train)
    epoch_steps = steps_per_epoch(train_size, config.batch_size)
    total_steps = min(config.epochs * epoch_steps, config.max_steps or sys.maxsize)

    # Model: equal weights on all ranks, then for each rank a dropout of its own.
    rng.seed_all(config.seed)
    net = network(data.train.shape, dropout=config.dropout).to(world.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=0.01)
    rng.seed_all(config.seed, 0, world.rank)

    # Checkpoint: what decides which batch comes next must be as it was; the rest may change.
    fixed = {"seed": config.seed, "batch_size": config.batch_size, "data": data.sha256}
    scaler = make_scaler(world.device, config.precision)
    state: State = {"model": net, "optimizer": optimizer, "scaler": scaler, "config": fixed}
    folder = open_folder(config, world)
    saving = checkpoint.is_kept(folder, world)
    first_step = 0
    if saving:
        first_step = checkpoint.load(folder, world, **state)
    total_steps = max(total_steps, first_step)  # less was asked for than has been trained already
    states = rng.get_state(world.device)  # the Trainer seeds anew, and equally on all ranks

    def save(step: int) -> None:
        with report.paused():
            checkpoint.save(folder, world, step=step, **state)

    with tempfile.TemporaryDirectory() as scratch:  # the Trainer insists on a folder
        trainer = ExactTrainer(
            net,
            arguments(config, world, scratch, total_steps),
            train_set=data.train,
            test_set=data.test,
            order=FilledOrder(train_size, config.seed, config.batch_size),
            optimizer=optimizer,
            report=report,
            save=save,
        )
        check(trainer, config, world)
        use_scaler(scaler, trainer.accelerator)
        after_step = AfterStep(trainer, config, world, stop, report, states, saving=saving)
        trainer.add_callback(after_step)
        if first_step < total_steps:  # asked for none, the Trainer would take one step
            trainer.train(resume_from_checkpoint=position(first_step, trainer.args))
        else:
            report.begin(net, optimizer, epoch_steps=epoch_steps, total_steps=total_steps)
        if after_step.stopped:
            return PREEMPTED_AND_SAVED if saving else TERMINATED
        stop.close()

        # Result: a finished training that is resumed has no steps left: nothing is evaluated yet.
        report.finish(*(after_step.counts or counts(trainer.evaluate())))
    return 0


def arguments(config: Config, world: World, folder: str, total_steps: int) -> TrainingArguments:
    """The other levels' settings; the Trainer's own are lr 5e-5, falling, and clipped gradients."""
    if world.size == 1:  # it would warn that our group of one has no launcher
        logging.getLogger("transformers.training_args").setLevel(logging.ERROR)
    made = TrainingArguments(
        output_dir=folder,
        max_steps=total_steps,
        per_device_train_batch_size=config.batch_size // (world.size * config.accumulation),
        per_device_eval_batch_size=128,
        gradient_accumulation_steps=config.accumulation,
        learning_rate=config.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        seed=config.seed,
        use_cpu=world.device.type == "cpu",
        ddp_backend=world.launch.backend,
        ddp_find_unused_parameters=False,
        accelerator_config={"split_batches": True},
        dataloader_pin_memory=False,  # the data is where the model is
        remove_unused_columns=False,
        label_names=["labels"],  # else evaluation takes them for the model's input
        eval_strategy="no",  # AfterStep says when to evaluate, to save and to log
        save_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,  # it would wait for the GPU after each step
        report_to="none",
        disable_tqdm=True,
    )
    made._n_gpu = min(1, made.n_gpu)  # without a launcher it would take DataParallel on all GPUs
    return made


def check(trainer: Trainer, config: Config, world: World) -> None:
    """Raises LaunchError where the Trainer would train something else than the other levels."""
    parts = world.size * config.accumulation
    if config.batch_size % parts:
        raise LaunchError(
            f"--batch-size is {config.batch_size}, but must be a multiple of {parts}, processes "
            "times --accumulation: the Trainer gives each an equal part"
        )
    if trainer.accelerator.num_processes != world.size:
        raise LaunchError(
            f"the Trainer sees {trainer.accelerator.num_processes} processes, but there are "
            f"{world.size}: start it with torchrun"
        )


def position(step: int, settings: TrainingArguments) -> str | None:
    """A checkpoint of the Trainer's that says no more than where to go on; None at the start."""
    if step == 0:
        return None
    state = TrainerState(global_step=step, train_batch_size=settings.per_device_train_batch_size)
    state.compute_steps(settings, settings.max_steps)  # type: ignore[no-untyped-call]
    state.save_to_json(f"{settings.output_dir}/trainer_state.json")
    return settings.output_dir


def counts(metrics: dict[str, float]) -> tuple[int, int]:
    """Correctly classified samples and samples, of an evaluation's metrics."""
    return int(metrics["eval_correct"]), int(metrics["eval_tested"])


class ExactTrainer(Trainer):
    """The Trainer with the other levels' loss, data and checkpoints."""

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingArguments,
        *,
        train_set: Samples,
        test_set: Samples,
        order: "FilledOrder",
        optimizer: torch.optim.Optimizer,
        report: Report,
        save: Callable[[int], None],
    ) -> None:
        super().__init__(
            model,
            settings,
            train_dataset=Indices(len(train_set)),
            eval_dataset=Indices(len(test_set)),
            compute_metrics=count,
            preprocess_logits_for_metrics=predictions,
            optimizers=(optimizer, None),  # its own would leave the biases out of weight decay
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True  # so that it counts a batch's samples, on all ranks
        self.train_set, self.test_set, self.order = train_set, test_set, order
        self._report, self._save_at = report, save
        self.loss_sum = torch.zeros((), device=settings.device)  # of this rank, since it was reset
        self.counted = torch.zeros((), dtype=torch.int64, device=settings.device)  # its samples

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The sum over this rank's samples, weighted so that DDP makes of it the batch's mean."""
        logits = model(inputs["images"])
        labels = inputs["labels"]
        loss = F.nll_loss(logits, labels, reduction="sum")  # leaves out what is IGNORED
        if model.training:
            self.loss_sum += loss.detach()
            self.counted += (labels != IGNORED).sum()
        assert num_items_in_batch is not None
        loss = loss * (self.accelerator.num_processes / num_items_in_batch)
        # Of a bare tensor the Trainer would drop the first row, taking it for the loss.
        return (loss, {"logits": logits}) if return_outputs else loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Each epoch's batches, filled up to equal size; this rank's slices of them."""
        batch_size = self.order.batch_size // self.args.gradient_accumulation_steps
        return self._loader(self.train_set, BatchSampler(self.order, batch_size, drop_last=False))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The test set in order, this rank's slices."""
        size = self.args.eval_batch_size * self.accelerator.num_processes
        in_order = BatchSampler(range(len(self.test_set)), size, drop_last=False)
        return self._loader(self.test_set, in_order)

    def _loader(self, samples: Samples, batches: BatchSampler) -> DataLoader[Any]:
        def collate(chosen: list[int]) -> dict[str, torch.Tensor]:
            index = sent(torch.tensor(chosen), samples.labels.device)
            images, labels = samples.batch(index.clamp(min=0))
            return {"images": images, "labels": labels.masked_fill(index < 0, IGNORED)}

        loader: DataLoader[Any] = DataLoader(
            Indices(len(samples)),
            batch_sampler=batches,
            collate_fn=collate,
            generator=torch.Generator(),  # else each iteration draws from everybody's
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """A step's batches and the number of their samples, over all ranks."""
        return super().get_batch_samples(self._report.timed(epoch_iterator), num_batches, device)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """The Trainer's, whose time is not the training's."""
        with self._report.paused():
            return super().evaluate(*arguments, **options)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Weights and optimizer have come from our own checkpoint."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._save_at(self.state.global_step)


class AfterStep(TrainerCallback):
    """What the other levels do after a step: report, vote on a stop, evaluate, save."""

    def __init__(
        self,
        trainer: ExactTrainer,
        config: Config,
        world: World,
        stop: StopVote,
        report: Report,
        states: dict[str, Any],
        *,
        saving: bool,
    ) -> None:
        self._trainer, self._config, self._world = trainer, config, world
        self._stop, self._report, self._saving = stop, report, saving
        self._states = states  # of the random generators, to begin with
        self.stopped = False
        self.counts: tuple[int, int] | None = None  # correct and tested, of the last evaluation

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Only now the model is wrapped in DDP."""
        trainer = self._trainer
        assert trainer.optimizer is not None
        warm_up(trainer.model_wrapped, trainer.train_set.any_image())
        rng.set_state(self._states, self._world.device)
        self._report.begin(
            trainer.model_wrapped,
            trainer.optimizer,
            trainer.accelerator.scaler,
            epoch_steps=trainer.order.epoch_steps,
            total_steps=state.max_steps,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer's own set_epoch does not reach the order in the epoch that it resumes in."""
        order = self._trainer.order
        order.set_epoch(state.global_step // order.epoch_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer evaluates, saves and stops as this says, in that order."""
        done, total = state.global_step, state.max_steps
        trainer = self._trainer
        batch_size = trainer.order.batch_size_of(done - 1)
        self._report.step(done, trainer.loss_sum, trainer.counted, batch_size)
        trainer.loss_sum.zero_()
        trainer.counted.zero_()
        control.should_evaluate = self._report.epoch_ends(done)

        self.stopped = self._stop.agreed(self._world) and done < total
        due = self.stopped or done % self._config.checkpoint_every == 0 or done == total
        control.should_save = self._saving and due
        if self.stopped:
            control.should_training_stop = True
            log.info(f"stopped by SIGTERM after step {done}/{total}")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After an epoch; `train` itself takes the numbers where there was none."""
        if self._trainer.is_in_train:
            self.counts = counts(kwargs["metrics"])
            self._report.evaluated(state.global_step, *self.counts)


class Indices(Dataset[int]):
    """The indices themselves, -1 too: samples are taken a batch at a time."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:
        return index


class FilledOrder(Sampler[int]):
    """All samples in the order of an epoch, and -1 until the last batch is full too."""

    def __init__(self, samples: int, seed: int, batch_size: int) -> None:
        self._samples, self._seed, self._epoch = samples, seed, 0
        self.batch_size = batch_size  # of all ranks together
        self.epoch_steps = steps_per_epoch(samples, batch_size)

    def set_epoch(self, epoch: int) -> None:
        """From the next iteration on, the order is that of `epoch`."""
        self._epoch = epoch

    def batch_size_of(self, step: int) -> int:
        """Samples in `step` (0-based, through all epochs), without the fillings."""
        return global_batch_size(self._samples, step % self.epoch_steps, self.batch_size)

    def __len__(self) -> int:
        return self.epoch_steps * self.batch_size

    def __iter__(self) -> Iterator[int]:
        order = epoch_order(self._samples, self._seed, self._epoch).tolist()
        return iter(order + [-1] * (len(self) - len(order)))


def predictions(logits: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
    """(B,) classes: less to gather than (B, 10) probabilities."""
    return logits.argmax(dim=1)


def count(evaluated: Any) -> dict[str, int]:
    """Correct and tested; the Trainer has gathered all ranks' predictions, each once."""
    right = evaluated.predictions == evaluated.label_ids
    return {"correct": int(right.sum()), "tested": len(right)}


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank from start to end; returns its exit code."""
    return run("ddptrain.hf", train, arguments)


if __name__ == "__main__":
    leave(main() or 0)
