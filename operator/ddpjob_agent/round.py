"""One pod's part of one round, from the launcher's start to the verdict."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import threading
import time
from typing import Any, Callable  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import NO_RENDEZVOUS, SAVED, Config, say
from ddpjob_agent.environment import is_ip
from ddpjob_agent.failures.evidence import find_failures, gather
from ddpjob_agent.failures.failures import Failure
from ddpjob_agent.failures.hangs import Hangs
from ddpjob_agent.failures.verdict import (
    Verdict,
    completed,
    judge_failures,
    judge_memory,
    judge_stop,
    judge_torchrun,
    refused,
    silent,
    termination_message,
    write_termination,
)
from ddpjob_agent.processes import Launcher, oom_kills
from ddpjob_agent.progress import POLL_SECONDS, Progress
from ddpjob_agent.records import objects, past, read_json, read_records

# Until the launcher has made its workers, that is asked so often.
START_SECONDS = 0.1
# Each look for the master's name waits so long, the first one too; see MasterWatch.
LOOK_SECONDS = 5.0
# Until it is said again that something is waited for, at first.
SAY_SECONDS = 15.0


class MasterWatch(threading.Thread):
    """Looks for the master's name beside the launcher, to say what is missing.

    CoreDNS remembers for 5 to 30 s, for all pods, that a name was asked for before it existed. So
    the launcher, whose imports take seconds, asks first and this thread never does; asking again
    while the absence is remembered neither helps nor prolongs it.
    """

    def __init__(self, host: str, look_seconds: float) -> None:
        super().__init__(daemon=True, name="master-watch")
        self.host, self.look_seconds = host, look_seconds
        self.found = threading.Event()

    def run(self) -> None:
        """Look until the name is found, less and less often. The resolver may block for long."""
        begin = time.monotonic()
        while not self.found.is_set():
            time.sleep(max(self.look_seconds, min(60.0, (time.monotonic() - begin) / 20)))
            with contextlib.suppress(OSError, UnicodeError):
                socket.getaddrinfo(self.host, None)
                self.found.set()


class Round:
    """Watches over a launcher, and judges how its part of the round ended."""

    def __init__(
        self,
        config: Config,
        mode: str,
        launcher: Launcher,
        *,
        on_start: Callable[[], None],
        on_end: Callable[[], None] = lambda: None,
        on_wait: Callable[[bool], None] = lambda _: None,
        is_over: Callable[[], bool],
        silence: Callable[[], str],
    ) -> None:
        """`on_start` is called once the training runs; `is_over`: the group goes on to another.

        `on_end` is called once torchrun's workers here have ended well, and it may wait for others;
        `on_wait` again and again while the training does not run: whether rank 0's name is known.

        `silence` says who has not been heard for too long; "" while nobody is missed.
        """
        self.config, self.mode = config, mode
        self.launcher, self.on_start, self.on_end = launcher, on_start, on_end
        self.on_wait, self.is_over = on_wait, is_over
        self.silence = silence
        self.progress = Progress(config)
        self.page = self.progress.page("waiting")
        self.hangs = Hangs(config, self.progress)
        self.started = False  # the training itself runs
        self.ended = False  # all of its workers have ended well; those of other nodes may not have
        self.expired = ""  # what was not there in time
        self.watch: MasterWatch | None = None
        launcher.on_stop = self.draft
        if launcher.terminated_at is not None:
            self.draft()

    def draft(self) -> None:
        """Write a termination message in case the grace period is cut short."""
        stop = judge_stop(self.launcher.terminated_at or time.time())
        write_termination(self.config.termination_log, termination_message(stop, self.page))

    def run(self, master: str) -> Verdict | None:
        """Watch the launcher to its end; the verdict, None where the round is over before.

        `master` is the name by which the launcher asks for node rank 0.
        """
        # In a later round the nodes have found each other.
        if self.config.nnodes > 1 and self.config.round == 0 and not is_ip(master):
            look_seconds = min(LOOK_SECONDS, self.config.rendezvous_seconds / 2)
            self.watch = MasterWatch(master, look_seconds)
            self.watch.start()
        self.wait()
        self.launcher.reap()  # an orphan that has just ended may have saved
        self.progress.poll(time.monotonic())
        words = self.silence()
        if words and self.launcher.code != 0:  # perhaps it is killed already
            return silent(words)
        return None if self.launcher.code is None and self.is_left() else self.judge()

    def is_left(self) -> bool:
        """Whether the group leaves this round, and nothing else ends it."""
        launcher = self.launcher
        return launcher.terminated_at is None and not launcher.refusal and self.is_over()

    def wait(self) -> None:
        """Until the launcher, and after SIGTERM all it left behind, has ended or time is up."""
        launcher, hangs, begin = self.launcher, self.hangs, time.monotonic()
        speaks_at = begin + (SAY_SECONDS if self.config.nnodes == 1 else 0.0)
        while launcher.code is None or (launcher.terminated_at is not None and launcher.rest()):
            launcher.pause(POLL_SECONDS if self.started else START_SECONDS)
            now = time.monotonic()
            if now > launcher.deadline or launcher.refusal or self.is_left() or self.silence():
                return
            if launcher.code is not None and launcher.terminated_at is not None:
                launcher.stop_orphans()
            if not self.started and self.has_started():
                self.started = True
                self.on_start()
            if not self.started:
                self.on_wait(self.watch is None or self.watch.found.is_set())
                missing, limit = self.missing()
                if now >= speaks_at:
                    of = f" of {limit:.0f} s" if limit < math.inf else "; the training goes on"
                    say(f"waiting for {missing} ({now - begin:.0f} s{of})")
                    speaks_at = now + max(SAY_SECONDS, now - begin)
                if now - begin > limit:
                    self.expired = f"{missing} is not there after {now - begin:.0f} s"
                    return
            self.progress.poll(now)
            self.page = self.progress.page("running" if self.started else "waiting")
            if not self.ended and all(
                w.get("exitcode") == 0 for w in self.progress.workers() or ({},)
            ):
                self.ended = True
                self.on_end()
            is_ending = launcher.code is not None or launcher.terminated_at is not None
            if hangs.verdict is not None and (is_ending or now > hangs.until):
                return
            if hangs.verdict is None and not is_ending and hangs.stands_still(now):
                self.page = self.progress.page("stalled")
                hangs.judge(now)

    def has_started(self) -> bool:
        """Whether torchrun has made its workers, or another command has a master or makes steps."""
        if self.mode == "torchrun":
            return os.path.exists(os.path.join(self.config.run_dir, "launch.json"))
        found = self.watch is None or self.watch.found.is_set()
        return found or self.progress.source != "none"

    def missing(self) -> tuple[str, float]:
        """The thing that is waited for, and how many seconds it may take in all.

        A command of the job's own may never need the name, so it is not ended for want of it.
        """
        config, limit = self.config, self.config.rendezvous_seconds
        if self.watch is not None and not self.watch.found.is_set():
            what = f"the name of node rank 0, {self.watch.host}"
            return what, limit if self.mode == "torchrun" else math.inf
        where = f"{config.master_addr}:{config.master_port}"
        # torchrun's own time-out comes first, and knows more
        return f"the group of {config.nnodes} nodes at {where}", limit + min(30, limit)

    def judge(self) -> Verdict:
        """The verdict on this pod's part of the round."""
        if self.hangs.verdict is not None:
            return self.hangs.verdict
        now, launcher = time.time(), self.launcher
        if launcher.refusal:
            return refused(launcher.refusal, launcher.refusal_by or None)
        if self.expired:
            return Verdict("Rendezvous", NO_RENDEZVOUS, Failure(self.expired, now))
        launch: Any = None
        if self.mode == "torchrun":
            launch = next(read_records(self.config.run_dir, "launch"), {})
        # Without a code the grace period was too short.
        code = -signal.SIGKILL if launcher.code is None else launcher.code
        failures = self.failures(launch, code, now) if code != 0 else []
        stop = launcher.terminated_at
        if stop is None or any(f.time < stop for f in failures):
            return self.judge_end(launch, code, failures, now)
        saved = [f for f in failures if f.exit_code == SAVED]
        if saved or SAVED in launcher.orphan_codes:
            return judge_failures(saved or [Failure("", stop, exit_code=SAVED)])
        if self.is_done(launch, code, stop):
            return completed(now, read_result(self.config))
        return judge_stop(stop)

    def failures(self, launch: Any, code: int, now: float) -> list[Failure]:
        """The failures of the workers; of the launcher where it has none."""
        config = self.config
        rank = config.node_rank if config.nproc_per_node == 1 else None
        end = {"pid": self.launcher.pid, "exitcode": code, "rank": rank, "local_rank": rank and 0}
        errors, exits = (read_records(config.run_dir, prefix) for prefix in ("error-", "exit-"))
        evidence = gather(errors, exits, self.progress.stepped(), now)
        return find_failures(config, launch, end, evidence)

    def judge_end(self, launch: Any, code: int, failures: list[Failure], now: float) -> Verdict:
        """The verdict on a launcher that nobody stopped."""
        if code == 0:
            return completed(now, read_result(self.config))
        if failures:
            workers = self.progress.workers()
            verdict = judge_failures(failures, self.config.nnodes == 1, workers)
        else:
            verdict = judge_torchrun(launch.get("error"), self.config, code, now)
        return judge_memory(verdict, oom_kills() - self.launcher.oom_kills)

    def is_done(self, launch: Any, code: int, stop: float) -> bool:
        """Whether the training was complete when SIGTERM came, at `stop`.

        Exit code 0 after it is no proof: many scripts leave their loop early and return.
        """
        workers = objects((launch or {}).get("workers"))
        ended = [past(w.get("ended_at"), stop) for w in workers if w.get("exitcode") == 0]
        if workers and len(ended) == len(workers) and max(ended) < stop:
            return True
        return code == 0 and self.progress.is_complete


# Bytes of a result in the termination message and in the status, as compact ASCII.
RESULT_BYTES = 2048
# Bytes of the file, which may have blanks.
FILE_BYTES = 64 * 1024
# Objects and lists within each other.
LEVELS = 32


def read_result(config: Config) -> dict[str, Any] | None:
    """`value` and `size` for the termination message; None without a file, or of another node.

    A value that is no JSON, or too large, is left out.
    """
    if config.node_rank != 0:
        return None
    try:
        size = os.stat(config.result_file).st_size
    except OSError:
        return None
    try:
        if size <= FILE_BYTES:
            value = read_json(config.result_file, FILE_BYTES)
            if is_deep(value, LEVELS):
                raise ValueError("nested too deeply")
            size = len(json.dumps(value, separators=(",", ":")))
            if size <= RESULT_BYTES:
                return {"value": value, "size": size}
        problem = f"has {size} bytes, and {RESULT_BYTES} are the limit"
    except (OSError, ValueError) as error:
        # A size within the limit, and no value: it is no JSON.
        size, problem = min(size, RESULT_BYTES), f"is no JSON: {error}"
    say(f"the result in {config.result_file} {problem}; it is left out")
    return {"size": size}


def is_deep(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested in more than so many levels."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(parts, list):
        return False
    return levels == 0 or any(is_deep(part, levels - 1) for part in parts)
