"""Watches for a hang, and finds out which rank the others wait for."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import Any, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import HANG, Config, say
from ddpjob_agent.environment import STACK_SIGNAL
from ddpjob_agent.failures.failures import PRIMARY, SECONDARY, SUSPECT, Failure, who_left
from ddpjob_agent.failures.verdict import Verdict, peer_ended
from ddpjob_agent.processes import is_alive, stat_words
from ddpjob_agent.progress import Progress, read_pages
from ddpjob_agent.records import integer, objects, past, read_records

# Ranks that wait for others stay so long after a hang: the other pods are yet to be judged.
LINGER_SECONDS = 4.0
# A rank may take so long to end after its exception, before it counts as hung.
ENDING_SECONDS = 10.0
# Who asks for the stacks within so long of an answer gets the same one.
SHOWN_SECONDS = 1.0


class Hangs:
    """The hang of this pod, if there is one."""

    def __init__(self, config: Config, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.verdict: Verdict | None = None
        self.until = -math.inf  # monotonic: until then the ranks stay where they are
        self.lock = threading.Lock()
        self.showing = threading.Lock()
        self.shown, self.shown_at = "", -math.inf

    def stands_still(self, now: float, *, is_dying: bool = False) -> bool:
        """Whether no step is made for too long; a rank that is dying has a while to end."""
        limit, still = self.config.hang_seconds, self.progress.still_seconds(now)
        if not 0 < limit <= still:
            return False
        if not is_dying:
            errors = read_records(self.config.run_dir, "error-")
            is_dying = any(is_ending(error, time.time()) for error in errors)
        return still >= limit + (ENDING_SECONDS if is_dying else 0.0)

    def judge(self, now: float) -> None:
        """Find out what keeps the ranks of this pod; their stacks go into the log.

        Where all of them wait for others they stay for a moment: once they were gone, a rank
        elsewhere would no longer stand where it was.
        """
        from ddpjob_agent.failures import stacks

        still, step = self.progress.still_seconds(now), self.progress.report.get("step")
        processes = self.take()
        found = stacks.culprit(processes)
        failure = Failure(f"no new step for {still:.0f} s after step {step}", time.time())
        if found is not None:
            failure.traceback = found.stacks or "\n".join(found.threads)
            failure.rank = found.rank if found.trains else None
        left = None
        if failure.rank is None or (found and found.kind != stacks.OWN):
            left = who_left(self.progress.workers(), failure)
        if not self.stands_still(now, is_dying=found is None and left is None):
            return  # a rank has just ended, or is about to: another pod's end may have reached it
        say(f"Hang: no new step for {still:.0f} s; the stacks of all local ranks:")
        print(stacks.show(processes), file=sys.stderr, flush=True)
        self.verdict = peer_ended(left) if left else Verdict("Hang", HANG, failure)
        self.until = time.monotonic() + (LINGER_SECONDS if left else 0.0)
        if found is None or left is not None:
            return
        failure.message += f"; {stacks.explain(found, processes)}"
        failure.rank, failure.local_rank = found.rank, found.local_rank
        failure.grade = {stacks.OWN: PRIMARY, stacks.DEVICE: SUSPECT}.get(found.kind, SECONDARY)
        failure.place = found.place if found.kind == stacks.WAITS else ""
        lingers = LINGER_SECONDS if failure.grade > PRIMARY else 0.0
        self.until = time.monotonic() + lingers  # the stacks took their time

    def take(self) -> Any:
        """The stacks of this pod's processes now: a list of stacks.Process."""
        from ddpjob_agent.failures import stacks

        launch = next(read_records(self.config.run_dir, "launch"), {})
        pids = [integer(worker.get("pid")) for worker in objects(launch.get("workers"))]
        workers = {*filter(None, pids), *(p.pid for p in read_pages(self.config.run_dir))}
        with self.lock:  # two at once would read each other's answers
            return stacks.take(os.getpid(), workers, STACK_SIGNAL)

    def show(self) -> str:
        """The stacks of this pod's processes, as text; for a moment the same, whoever asks.

        Every answer is some work of every rank, and anybody who reaches the port may ask.
        """
        from ddpjob_agent.failures import stacks

        with self.showing:
            if time.monotonic() - self.shown_at > SHOWN_SECONDS:
                self.shown = stacks.show(self.take())
                self.shown_at = time.monotonic()
            return self.shown


def is_ending(record: Mapping[str, Any], now: float) -> bool:
    """Whether the process of an uncaught exception still lives, or has ended a moment ago."""
    pid = integer(record.get("pid"))
    lives = pid is not None and is_alive(stat_words(pid))
    return lives or now - past(record.get("ended_at"), now) < ENDING_SECONDS
