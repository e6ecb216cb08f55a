"""One pod's part of one attempt: its rounds, up to the termination message."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Any, Callable  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import OK, Config, say
from ddpjob_agent.failures.verdict import (
    Verdict,
    announce,
    completed,
    conclude,
    judge_stop,
    silent,
    termination_message,
    unready,
    write_termination,
)
from ddpjob_agent.leftovers import tidy
from ddpjob_agent.nodes.group import CLEAN, ENDED, FAILED, RUNNING, Node, failure_of
from ddpjob_agent.nodes.link import PART_SECONDS, Link
from ddpjob_agent.nodes.peers import Peers
from ddpjob_agent.processes import Launcher
from ddpjob_agent.program import Program
from ddpjob_agent.progress import Progress
from ddpjob_agent.round import Round
from ddpjob_agent.start import Setup, prepare, start

# Failures after which the same pods may try again. Ranks that have saved (Preempted) did so because
# another pod is about to go: this one has had no SIGTERM.
REPEATABLE = (
    *("Exception", "ExitCode", "Signal", "Hang", "OOMKilled", "PeerEnded", "NodeSilent"),
    "Preempted",
)
# A node whose ranks have failed waits so long to be asked on, and a clean one for the others.
WAIT_SECONDS = 30.0
# The same while rank 0's agent is not there: another pod may come in its place. After a longer
# pause the operator makes all pods anew.
HEAD_SECONDS = 120.0
# The same while rank 0's agent waits for another pod: a node has to be found, its image pulled.
REPLACED_SECONDS = 900.0
# The termination message of the last round that failed, in the run folder.
FAILURE = "failure.json"
# Ranks that are in order have so long to end after SIGTERM.
STOP_SECONDS = 5.0
# Characters of a command in the log.
MOST_SHOWN = 300
# A log that takes no more lines is waited for so long, before a termination message and after it.
DRAIN_SECONDS, LOG_SECONDS = 2.0, 30.0


class Rounds:
    """Leads this pod from round to round."""

    def __init__(
        self, config: Config, mode: str, arguments: list[str], launcher: Launcher, setup: Setup
    ) -> None:
        self.first, self.mode, self.program = config, mode, Program(config, arguments)
        self.launcher, self.setup = launcher, setup
        self.peers = Peers(config, launcher)
        self.round = self.make_round(config)
        self.is_told = False  # the log has the round's failure already
        self.last: Verdict | None = None  # on the last round that has ended by itself
        self.news: list[str] = []  # lines that belong to the round that is to begin

    def make_round(self, config: Config) -> Round:
        """The round whose launcher has just been started, or is about to be."""
        number = config.round

        def begun() -> None:
            if self.peers.link is not None:
                self.peers.tell(Node(number, RUNNING))
            self.peers.listen()

        def ended() -> None:
            message = termination_message(completed(time.time()), self.round.page)
            self.peers.tell(Node(number, ENDED, failure_of(0, message)))

        return Round(
            config,
            self.mode,
            self.launcher,
            on_start=begun,
            on_end=ended,
            is_over=lambda: self.is_left(number) or self.peers.is_out(),
            on_wait=lambda is_known: self.peers.reach_out(number, is_known),
            silence=self.peers.silence,
        )

    def is_left(self, number: int) -> bool:
        """Whether the group leaves this round."""
        return self.peers.order.round > number or self.peers.new_place() is not None

    def page(self) -> dict[str, Any]:
        """The object served at /progress."""
        place, beats = self.peers.place(), self.peers.beats
        rank = {} if place is None else {"node_rank": place[0]}
        return {**self.round.page, **({} if beats is None else beats.page()), **rank}

    def run(self, master: str) -> int:
        """Watch over the rounds, and write the termination message; the agent's exit code.

        `master` is the name by which the launcher asks for node rank 0.
        """
        self.peers.join(master)
        self.serve()
        peers, is_new = self.peers, self.first.joins_others  # so it has no launcher yet
        if is_new:
            self.prepare()
        end = self.wait_for_place() if self.first.is_spare else None
        while True:
            self.is_told = False
            verdict = end if is_new else self.round.run(master)
            if not is_new:
                end = self.leave(verdict)
            elif end is None:
                end = self.wait_for_others(None, is_new=True)
            is_new = False
            if end is not None:
                are_dead = self.launcher.kill_rest()
                parting = None
                if are_dead and self.launcher.terminated_at and isinstance(peers.link, Link):
                    parting = peers.link.part()
                self.launcher.on_stop = lambda: None  # the message is not to be written over
                self.drain()
                self.round.page = self.round.progress.page("finished")
                log, is_told = self.first.termination_log, end is verdict and self.is_told
                code = conclude(end, self.round.page, log, quietly=is_told)
                if peers.beats is not None and not peers.silence():
                    peers.beats.leave()
                self.drain(LOG_SECONDS)
                if parting is not None:
                    parting.join(PART_SECONDS)
                return code
            self.begin(self.peers.order.begun)

    def wait_for_place(self) -> Verdict | None:
        """Wait, as a spare, for a rank; the end where the group, or this pod, ends before."""
        heard_at, stop = time.monotonic(), None
        if self.peers.link is not None:
            self.peers.tell(Node(0, CLEAN))
        say("this pod is a spare: it waits for a node rank")
        while stop is None and time.monotonic() - heard_at < HEAD_SECONDS:
            found = self.peers.place()
            if found is not None:
                self.take_place(*found)
                return None
            if self.peers.is_heard():
                heard_at = time.monotonic()
            self.launcher.pause(1.0)
            stop = self.launcher.terminated_at
        if stop is not None:
            return judge_stop(stop)
        return unready(f"node rank 0 has not been heard for {HEAD_SECONDS:.0f} s")

    def take_place(self, rank: int, since: int) -> None:
        """Be the pod of a node rank from now on, as if it had been made for it."""
        config = self.first
        self.drain()
        say(f"this pod gets node rank {rank}")
        config.round, config.is_spare = since, False
        self.peers.become(rank)
        self.round.page = self.round.progress.page("waiting")
        self.setup.tell_ranks_apart(config)

    def serve(self) -> None:
        """Serve what this pod has to tell."""
        from ddpjob_agent.server import Pages, serve  # takes 40 ms

        def hear(report: Any) -> None:
            self.round.progress.hear(report)

        peers, token = self.peers, self.setup.callback_token
        its = peers.group, peers.token, peers.follow if peers.link is not None else None
        serve(self.first, Pages(self.page, lambda: self.round.hangs.show(), *its, hear, token))

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Have the ranks' last lines in the log before anything else, if it takes them in time."""
        if self.setup.output is not None:
            self.setup.output.drain(seconds)

    def leave(self, verdict: Verdict | None) -> Verdict | None:
        """Leave a round that has ended so; None where another one may begin, else the end."""
        if verdict is None:
            grace = self.first.grace_seconds if self.peers.order.gently else 0
            self.launcher.stop(max(STOP_SECONDS, grace))
        elif not self.may_repeat(verdict):
            return verdict
        else:
            self.last = verdict
            self.tell_end(verdict)
        is_silent = verdict is not None and verdict.reason == "NodeSilent"
        if not self.launcher.kill_rest(spares_server=not is_silent):
            words = f"a process of round {self.round.config.round} cannot be killed"
            return verdict or unready(words)
        if is_silent:  # its fork server has ended too
            self.prepare()
        if verdict is not None and not self.is_asked_on():
            return verdict
        return self.wait_for_others(verdict)

    def may_repeat(self, verdict: Verdict) -> bool:
        """Whether the operator may have this pod try again, or run something else."""
        is_stopped = self.launcher.terminated_at is not None or self.peers.ends_it()
        may_pass = (*REPEATABLE, *(["Rendezvous"] if self.first.is_elastic else []))
        may = verdict.reason in may_pass or self.first.keep_seconds > 0
        return self.peers.link is not None and may and not is_stopped

    def tell_end(self, verdict: Verdict) -> None:
        """Tell the group, the log, and whoever may read the termination message."""
        number, log = self.round.config.round, self.first.termination_log
        self.launcher.on_stop = lambda: None  # the message is not to be written over
        is_well = verdict.agent_exit == OK
        self.round.page = self.round.progress.page("finished" if is_well else "failed")
        message = termination_message(verdict, self.round.page)
        write_termination(log, message)
        # The log is emptied as the next round begins; for who looks into the pod.
        write_termination(os.path.join(self.first.run_dir, FAILURE), message)
        failure = failure_of(verdict.agent_exit, message)
        self.peers.tell(Node(number, FAILED, failure))
        self.drain()
        if not is_well:
            announce(verdict)
        self.is_told = True

    def is_asked_on(self) -> bool:
        """Whether another round is asked for, while this pod waits with its failure.

        One that is kept waits for the ranks of others as well.
        """
        number = self.round.config.round
        keep, is_head = self.first.keep_seconds, self.peers.link is self.peers.group
        # Rank 0's agent bounds the wait of all, in case there is no operator any more.
        most = math.inf if keep and not is_head else REPLACED_SECONDS + keep
        return self.wait(lambda: self.is_left(number), lambda: self.peers.order.ends, most)

    def wait_for_others(self, verdict: Verdict | None, *, is_new: bool = False) -> Verdict | None:
        """Be clean for the round that is wanted until it may begin; the end if it never does.

        A kept pod that cannot use the code of that round waits for other code, each time anew.
        """
        peers = self.peers
        number, told = max(peers.order.round, self.first.round), (0, False, "")
        tidy(self.first.run_dir)
        self.launcher.on_stop = lambda: None
        is_laid, problem = is_new, None

        def has_begun() -> bool:
            nonlocal number, told, is_laid, problem
            if (place := peers.new_place()) is not None:
                self.take_place(*place)
                told = 0, False, ""
            wanted, program = peers.order.round, peers.order.program
            is_another = self.program.is_another(program)
            if is_another and not peers.bring(program):
                return False
            number = max(number, wanted, self.first.round)  # perhaps another pod has been lost
            if is_another or not is_laid:
                problem, is_laid = self.lay_down(program if is_another else ""), True
                if problem is not None and keep:
                    self.round = self.make_round(self.first.of_round(number, peers.order.size))
                    self.last = problem
                    self.tell_end(problem)
                    return True
            if problem is not None:
                return False
            # Before the order it is not taken in.
            if told != (now := (number, wanted == number, self.first.program)):
                told = now
                peers.tell(peers.clean(number))
            return peers.order.begun >= number and not is_out()

        def is_out() -> bool:
            is_done = keep > 0 and peers.order.ends
            is_vain = problem is not None and not keep
            return is_vain or is_done or peers.is_out() and not is_new

        keep = self.first.keep_seconds
        while self.wait(has_begun, is_out, REPLACED_SECONDS + keep):
            if problem is None:
                return None
        if keep and peers.order.ends and self.last is not None:
            return self.last
        if problem is not None:
            self.round.progress = Progress(self.first.of_round(number))
            return problem
        stop, words = self.launcher.terminated_at, peers.silence()
        if stop is not None and not words:  # ranks that had ended well were to run something else
            return judge_stop(stop) if verdict is None or verdict.agent_exit == OK else verdict
        # This round has made no step.
        self.round.progress = Progress(self.first.of_round(number))
        if words:
            return silent(words)
        if peers.is_out():
            return unready("another pod is there in the place of this one")
        size = peers.order.size or self.first.nnodes
        return unready(f"not all of {size} nodes were ready for round {number} in time")

    def lay_down(self, program: str) -> Verdict | None:
        """Have the code in its folder, and what this print names, if any, as what ranks run.

        The verdict where that fails, else None.
        """
        from ddpjob_agent.code import invalid, lay_down  # few jobs need it

        if program:
            try:
                if self.program.become(program):  # a fork server has the variables of before
                    self.prepare()
            except (OSError, ValueError) as error:
                return invalid(f"what the ranks are to run cannot be read: {error}")
            self.news.append(f"it runs {' '.join(self.program.arguments)[:MOST_SHOWN]}")
        return lay_down(self.first, self.news.append) if self.first.code_dir else None

    def prepare(self) -> None:
        """Have a new fork server there before the launcher."""
        self.launcher.close_server()
        prepare(self.launcher, self.first, self.mode, self.program.arguments, self.setup)

    def wait(self, holds: Callable[[], bool], is_vain: Callable[[], bool], most: float) -> bool:
        """Wait until something holds.

        False where it does not in time, or SIGTERM comes. There is more time while rank 0's agent
        waits for another pod, `most` seconds of it, or its own pod is lost, and in kept pods.
        """
        begin = time.monotonic()
        now, until = begin, begin + WAIT_SECONDS
        while self.launcher.terminated_at is None and not self.peers.ends_it():
            if holds():
                return True
            if is_vain() or now > until:
                return False
            now, link = time.monotonic(), self.peers.link
            waits = link is not None and (link.order.waits or self.first.keep_seconds > 0)
            if link is not None and (waits or not link.is_heard()):
                if not link.was_heard:
                    return False
                longest = begin + (most if link.is_heard() else HEAD_SECONDS)
                until = max(until, min(longest, now + WAIT_SECONDS))
            self.launcher.pause(1.0)
        return False

    def begin(self, number: int) -> None:
        """Begin a round."""
        config = self.first.of_round(number, self.peers.order.size)
        write_termination(self.first.termination_log, b"")
        self.drain()
        with contextlib.suppress(OSError):
            # A killed process may have left a line without its end.
            for stream in (1,) if os.path.sameopenfile(1, 2) else (1, 2):
                os.write(stream, b"\n")
        say(f"round {number} of attempt {config.attempt} begins")
        for line in self.news:
            say(line)
        self.news.clear()
        self.last = None
        self.round = self.make_round(config)
        self.round.progress.ignore_file()
        start(self.launcher, config, self.mode, self.program.arguments, self.setup)
