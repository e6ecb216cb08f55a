"""Has transformers' Trainer, and Accelerate, save on notice: nothing of it is in the script.

Notice is SIGTERM to any rank. Now and then the ranks compare notes by a small all-reduce on the
CPU, which runs while the next step computes. So all of them save after the same step, and end with
exit code 75; the next start goes on from there. Nothing is done where the script handles SIGTERM
itself, or saves nothing. Beside sitecustomize.py in the pod, which loads it when a script imports
either library. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable  # noqa: UP035 - Python 3.8

SAVED = 75  # as in config.py
# Between two votes, as far as steps allow; and should steps become much slower than they were.
SECONDS, MOST_STEPS = 1.0, 64
# Beside the files of a checkpoint that was saved on notice.
MARK = "ddpjob-saved-on-notice"


def is_free() -> bool:
    """Whether SIGTERM would simply end this process, so that nobody else saves on it."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def say(text: str) -> None:
    """One line on stderr, in one piece."""
    sys.stderr.write(f"ddpjob: {text}\n")
    sys.stderr.flush()


class Vote:
    """All ranks' agreement on the step after which to save, as in ddptrain's `preemption.py`.

    A vote also says how many steps later the next one is, by the rank that wants it soonest.
    """

    def __init__(self) -> None:
        """All ranks have to make one at the same time."""
        dist: Any = import_module("torch.distributed")
        self.dist = dist if dist.is_available() and dist.is_initialized() else None
        self.group: Any = self.dist and self.dist.new_group(backend="gloo")
        self.is_asked = False
        self.pending: Any = None
        self.every = self.left = 1
        self.voted: float | None = None

    def listen(self) -> None:
        """Take SIGTERM for notice. It goes to process groups, and is not to end data loaders."""
        loading: Any = import_module("torch.utils.data.dataloader")

        def ask(number: int, frame: Any) -> None:
            self.is_asked = True

        signal.signal(signal.SIGTERM, ask)
        iterator = loading._MultiProcessingDataLoaderIter
        init = iterator.__init__

        def with_workers_apart(this: Any, *arguments: Any, **options: Any) -> None:
            init(this, *arguments, **options)
            for worker in this._workers:
                with contextlib.suppress(OSError):  # it has begun another program
                    os.setpgid(worker.pid, worker.pid)

        iterator.__init__ = with_workers_apart

    def agreed(self) -> bool:
        """Whether any rank had notice by the last vote, on all ranks alike; once a step."""
        if self.dist is None:
            return self.is_asked
        if self.pending is not None:
            work, ballot = self.pending
            self.pending = None
            work.wait()
            stop, wish = ballot.tolist()
            self.every = self.left = -wish
            if stop:
                return True
        self.left -= 1
        if self.left <= 0:
            torch: Any = import_module("torch")
            ballot = torch.tensor([int(self.is_asked), -self.wish()])
            most = self.dist.ReduceOp.MAX
            work = self.dist.all_reduce(ballot, most, group=self.group, async_op=True)
            self.pending = work, ballot
        return False

    def wish(self) -> int:
        """In how many steps this rank would vote again, by what the last ones took."""
        before, self.voted = self.voted, time.monotonic()
        if before is None:
            return 1
        step = max(1e-9, self.voted - before) / self.every
        return max(1, min(int(SECONDS / step), MOST_STEPS, 2 * self.every))

    def same(self, text: str) -> str:
        """`text` if it is that of all ranks, else ""."""
        if self.dist is None:
            return text
        every = [None] * self.dist.get_world_size(self.group)
        self.dist.all_gather_object(every, text, group=self.group)
        return text if {*every} == {text} else ""

    def leave(self, words: str) -> None:
        """End once all ranks have saved."""
        if self.dist is not None:
            self.dist.barrier(group=self.group)
        say(f"{words} on notice, and ends with exit code {SAVED}")
        raise SystemExit(SAVED)


def give_trainer(module: Any) -> None:
    """Give each Trainer of `transformers.trainer` a callback, and resume what that has saved."""
    trainer = module.Trainer
    init, train = trainer.__init__, trainer.train

    class SaveOnNotice(module.TrainerCallback):  # type: ignore[misc]
        """Saves after the step in which the ranks agree."""

        vote: Vote | None = None
        is_due = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.vote is not None and self.vote.agreed():
                self.is_due = control.should_save = True
                control.should_evaluate = False

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.is_due and self.vote is not None:
                folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
                if args.should_save:
                    open(os.path.join(folder, MARK), "w").close()
                self.vote.leave(f"has saved {folder}")

    def with_callback(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.add_callback(SaveOnNotice())

    def resuming(self: Any, resume_from_checkpoint: Any = None, *more: Any, **options: Any) -> Any:
        args, callbacks = self.args, self.callback_handler.callbacks
        callback = next((each for each in callbacks if type(each) is SaveOnNotice), None)
        strategy = getattr(args.save_strategy, "value", args.save_strategy)
        if callback is None or strategy == "no" or args.save_only_model or not is_free():
            return train(self, resume_from_checkpoint, *more, **options)
        vote = callback.vote = Vote()
        if resume_from_checkpoint in (None, False):
            resume_from_checkpoint = vote.same(last_on_notice(module, args.output_dir)) or None
            if resume_from_checkpoint:
                say(f"goes on from {resume_from_checkpoint}, which was saved on notice")
        vote.listen()
        try:
            return train(self, resume_from_checkpoint, *more, **options)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    trainer.__init__, trainer.train = with_callback, resuming


def last_on_notice(module: Any, folder: str) -> str:
    """The last checkpoint in a folder, if it was saved on notice, else ""."""
    found = module.get_last_checkpoint(folder) if os.path.isdir(folder) else None
    return found if found and os.path.exists(os.path.join(found, MARK)) else ""


def give_accelerator(module: Any) -> None:
    """Have scripts with `automatic_checkpoint_naming` save where their loop asks for a batch.

    Then all of the step before it is done. They load the last state themselves, as they do.
    """
    init = module.Accelerator.__init__

    def with_vote(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        if not self.project_configuration.automatic_checkpoint_naming or not is_free():
            return
        vote = Vote()
        vote.listen()

        def after_step() -> None:
            trains = any(model.training for model in self._models)
            if trains and self.sync_gradients and vote.agreed():
                vote.leave(f"has saved {self.save_state()}")

        look_between_batches(after_step)

    module.Accelerator.__init__ = with_vote


def look_between_batches(look: Callable[[], None]) -> None:
    """Call `look` whenever a loop over accelerate's data asks for the next batch."""
    loaders: Any = import_module("accelerate.data_loader")

    def looking(iterate: Any) -> Any:
        def batches(self: Any) -> Any:
            for batch in iterate(self):
                yield batch
                look()

        return batches

    for loader in (loaders.DataLoaderShard, loaders.DataLoaderDispatcher):
        loader.__iter__ = looking(loader.__iter__)
