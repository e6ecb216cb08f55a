"""Has transformers' Trainer, and Accelerate, save on notice: nothing of it is in the script.

Notice is SIGTERM to any rank. Now and then the ranks compare notes by a small all-reduce on the
CPU, which runs while the next step computes. So all of them save after the same step, and end with
exit code 75; the next start goes on from there. Nothing is done where the script handles SIGTERM
itself, or saves nothing. Beside sitecustomize.py in the pod, which loads it when a script imports
either library. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable, ClassVar  # noqa: UP035 - Python 3.8

SAVED = 75  # as in config.py
# Between two votes, as far as steps allow; and should steps become much slower than they were.
SECONDS, MOST_STEPS = 1.0, 64
# Beside the files of a checkpoint that was saved on notice: by which job, in which training of it.
MARK = "ddpjob-saved-on-notice"
# More ranks would need as many connections each.
MOST_RANKS = 256


def job_uid() -> str:
    """The job's uid, of the rendezvous' id: UID-ATTEMPT, and then -ROUND."""
    text = os.environ.get("PET_RDZV_ID", "")
    for name in ("DDPJOB_ROUND", "DDPJOB_ATTEMPT"):
        end = "-" + os.environ.get(name, "")
        text = text[: -len(end)] if text.endswith(end) else text
    return text


def is_free() -> bool:
    """Whether SIGTERM would simply end this process, so that nobody else saves on it."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def say(text: str) -> None:
    """One line on stderr, in one piece."""
    sys.stderr.write(f"ddpjob: {text}\n")
    sys.stderr.flush()


def make_vote(*, may_save: bool) -> Vote | None:
    """A vote, if all ranks may save on notice; all have to ask for one at the same time."""
    try:
        vote = Vote()
        return vote if vote.same(str(may_save and is_free())) == "True" else None
    except Exception as problem:  # the training needs none of this
        say(f"nothing is saved on notice: {problem!r}")
        return None


class Vote:
    """All ranks' agreement on the step after which to save, as in ddptrain's `preemption.py`.

    A vote also says how many steps later the next one is, by the rank that wants it soonest.
    """

    groups: ClassVar[list[Any]] = []  # of this process: one is enough

    def __init__(self) -> None:
        """Raises ValueError for too many ranks, or what torch raises."""
        dist: Any = import_module("torch.distributed")
        self.dist = dist if dist.is_available() and dist.is_initialized() else None
        if self.dist is not None:
            if dist.get_world_size() > MOST_RANKS:
                raise ValueError(f"more than {MOST_RANKS} ranks")
            self.groups[:] = self.groups or [dist.new_group(backend="gloo")]
        self.group: Any = self.groups[0] if self.groups else None
        self.is_asked = False
        self.pending: Any = None
        self.every = self.left = 1
        self.voted: float | None = None

    def listen(self) -> None:
        """Take SIGTERM for notice."""

        def ask(number: int, frame: Any) -> None:
            self.is_asked = True

        self.ask = ask
        signal.signal(signal.SIGTERM, ask)
        os.register_at_fork(after_in_child=self.forget)  # such a process is ended by SIGTERM
        keep_workers_apart()

    def forget(self) -> None:
        """Take SIGTERM for what it was."""
        if signal.getsignal(signal.SIGTERM) is self.ask:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

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


@functools.lru_cache(maxsize=None)  # once: a process may train often  # noqa: UP033 - Python 3.8
def keep_workers_apart() -> None:
    """Have workers of data loaders in their own process groups: SIGTERM goes to those of ranks."""
    loading: Any = import_module("torch.utils.data.dataloader")
    iterator = loading._MultiProcessingDataLoaderIter
    init = iterator.__init__

    def with_workers_apart(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        for worker in self._workers:
            with contextlib.suppress(OSError):  # it has begun another program
                os.setpgid(worker.pid, worker.pid)

    iterator.__init__ = with_workers_apart


def give_trainer(module: Any) -> None:
    """Give each Trainer of `transformers.trainer` a callback, and resume what that has saved."""
    trainer = module.Trainer
    init, train = trainer.__init__, trainer.train
    trainings = itertools.count(1)  # of this process

    class SaveOnNotice(module.TrainerCallback):  # type: ignore[misc]
        """Saves after the step in which the ranks agree."""

        vote: Vote | None = None
        mark = ""
        is_due = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.vote is not None and self.vote.agreed():
                self.is_due = control.should_save = True
                control.should_evaluate = False

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.is_due and self.vote is not None:
                folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
                if args.should_save:
                    self.leave_mark(os.path.join(folder, MARK))
                self.vote.leave(f"has saved {folder}")

        def leave_mark(self, path: str) -> None:
            with contextlib.suppress(OSError), open(path, "w") as file:  # a search has it elsewhere
                file.write(self.mark)

    @functools.wraps(init)
    def with_callback(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.add_callback(SaveOnNotice())

    @functools.wraps(train)
    def resuming(self: Any, resume_from_checkpoint: Any = None, *more: Any, **options: Any) -> Any:
        args, callbacks = self.args, self.callback_handler.callbacks
        callback = next((each for each in callbacks if type(each) is SaveOnNotice), None)
        strategy = getattr(args.save_strategy, "value", args.save_strategy)
        is_whole = not getattr(args, "save_only_model", False)
        may_save = callback is not None and strategy != "no" and is_whole
        number, vote = next(trainings), make_vote(may_save=may_save)
        if vote is None or callback is None:
            return train(self, resume_from_checkpoint, *more, **options)
        callback.vote, callback.mark = vote, f"{job_uid()} {number}"
        if resume_from_checkpoint in (None, False):
            found = last_on_notice(module, args.output_dir, callback.mark)
            resume_from_checkpoint = vote.same(found) or None
            if resume_from_checkpoint:
                say(f"goes on from {resume_from_checkpoint}, which was saved on notice")
        vote.listen()
        try:
            return train(self, resume_from_checkpoint, *more, **options)
        finally:
            vote.forget()

    trainer.__init__, trainer.train = with_callback, resuming


def last_on_notice(module: Any, folder: str, mark: str) -> str:
    """The last checkpoint in a folder, if it was saved on notice with this mark, else ""."""
    found: str = (os.path.isdir(folder) and module.get_last_checkpoint(folder)) or ""
    with contextlib.suppress(OSError), open(os.path.join(found, MARK)) as file:
        return found if file.read() == mark else ""
    return ""


def give_accelerator(module: Any) -> None:
    """Have scripts with `automatic_checkpoint_naming` save where their loop asks for a batch.

    Then all of the step before it is done. They load the last state themselves, as they do.
    """
    init = module.Accelerator.__init__

    @functools.wraps(init)
    def with_vote(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        project: Any = getattr(self, "project_configuration", None)
        if not getattr(project, "automatic_checkpoint_naming", False):
            return
        # With batches of unequal number some ranks would vote alone.
        vote = make_vote(may_save=bool(getattr(self, "even_batches", False)))
        if vote is None:
            return
        vote.listen()

        def after_step() -> None:
            trains = any(model.training for model in self._models)
            if trains and self.sync_gradients and vote.agreed():
                project.iteration = next_number(project)
                vote.leave(f"has saved {self.save_state()}")

        look_between_batches(after_step)

    module.Accelerator.__init__ = with_vote


def next_number(project: Any) -> int:
    """The number of the next checkpoint, whoever has made those that there are."""
    folder = os.path.join(project.project_dir or "", "checkpoints")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [int(n[11:]) for n in names if n.startswith("checkpoint_") and n[11:].isdigit()]
    return max([int(project.iteration), *(number + 1 for number in numbers)])


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
