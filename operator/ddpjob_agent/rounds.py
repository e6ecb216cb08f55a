"""One pod's part of one attempt: its rounds, up to the termination message."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say
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
from ddpjob_agent.nodes.group import (
    CLEAN,
    ENDED,
    FAILED,
    RUNNING,
    Group,
    Node,
    failure_of,
    print_of,
)
from ddpjob_agent.nodes.link import PART_SECONDS, Link
from ddpjob_agent.processes import Launcher
from ddpjob_agent.progress import Progress
from ddpjob_agent.round import Round
from ddpjob_agent.start import Setup, prepare, start

if TYPE_CHECKING:
    from ddpjob_agent.nodes.heartbeat import Heartbeats

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
# A log that takes no more lines is waited for so long, before a termination message and after it.
DRAIN_SECONDS, LOG_SECONDS = 2.0, 30.0


class Rounds:
    """Leads this pod from round to round."""

    def __init__(
        self, config: Config, mode: str, arguments: list[str], launcher: Launcher, setup: Setup
    ) -> None:
        self.first, self.mode, self.arguments = config, mode, arguments
        self.launcher, self.setup = launcher, setup
        self.group: Group | None = None
        self.link: Group | Link | None = None
        self.beats: Heartbeats | None = None
        self.token = config.token if config.in_place or config.node_timeout else ""
        self.round = self.make_round(config)
        self.is_told = False  # the log has the round's failure already
        self.news: list[str] = []  # lines that belong to the round that is to begin

    def make_round(self, config: Config) -> Round:
        """The round whose launcher has just been started, or is about to be."""
        number = config.round

        def begun() -> None:
            if self.link is not None:
                self.link.tell(config.node_rank, Node(number, RUNNING))
            if self.beats is not None:
                self.beats.begin()

        def ended() -> None:
            message = termination_message(completed(time.time()), self.round.page)
            group = self.link or self.group  # which may hear of no other node's
            if group is not None:
                group.tell(config.node_rank, Node(number, ENDED, failure_of(0, message)))

        return Round(
            config,
            self.mode,
            self.launcher,
            on_start=begun,
            on_end=ended,
            is_over=lambda: self.wanted() > number or self.is_out() or self.new_place() is not None,
            on_name=lambda: self.reach_out(number),
            silence=self.silence,
        )

    def make_link(self, master: str) -> None:
        """Be in touch with the other nodes, where there is a token for it."""
        config, wake_up = self.first, self.launcher.wake_up
        if not self.token:
            return
        if config.node_rank == 0 or config.is_spare or config.is_elastic:  # which may become it
            self.group = Group(config.nnodes, wake_up, waits=config.joins_others)
        if config.in_place:
            is_head = config.node_rank == 0
            self.link = self.group if is_head else Link(config, self.token, master, wake_up)
        self.make_beats(master)

    def make_beats(self, master: str) -> None:
        """Listen for the other nodes, or to rank 0's at this address. A spare is no node."""
        config, old, on_lost = self.first, self.beats, self.launcher.kill_now
        if config.is_elastic and config.node_rank == 0 and self.group is not None:
            from ddpjob_agent.saves import watch

            group = self.group
            watch(config.checkpoint_dir, lambda: group.nnodes < config.nnodes, group.note_save)
        if config.node_timeout and not config.is_spare:
            from ddpjob_agent.nodes.heartbeat import HeadHeartbeats, MemberHeartbeats

            if config.node_rank == 0:
                assert self.group is not None
                self.beats = HeadHeartbeats(config, self.token, self.group, on_lost)
            else:
                self.beats = MemberHeartbeats(config, self.token, master, on_lost)
            if old is not None:
                old.is_over = True

    def follow(self, address: str) -> None:
        """Be in touch with the pod that has become rank 0's, if it is another one than before."""
        link = self.link
        if isinstance(link, Link) and address != link.host:
            self.first.master_addr = address
            self.make_beats(address)
            link.move(address)

    def is_out(self) -> bool:
        """Whether another pod is there in the place of this one."""
        return isinstance(self.link, Link) and self.link.is_out

    def silence(self) -> str:
        """Who has not been heard for too long; "" while nobody is missed."""
        return "" if self.beats is None else self.beats.words()

    def ends_it(self) -> str:
        """Who is missed so much that this pod ends. Others than rank 0 wait for another one."""
        return self.silence() if self.link is None or self.link is self.group else ""

    def page(self) -> dict[str, Any]:
        """The object served at /progress."""
        place = self.place()
        rank = {} if place is None else {"node_rank": place[0]}
        return {**self.round.page, **({} if self.beats is None else self.beats.page()), **rank}

    def wanted(self) -> int:
        """The round that the group is to be in."""
        return 0 if self.link is None else self.link.order.round

    def begun(self) -> int:
        """The latest round that may begin; perhaps the next one is wanted already."""
        return 0 if self.link is None else self.link.order.begun

    def run(self, master: str) -> int:
        """Watch over the rounds, and write the termination message; the agent's exit code.

        `master` is the name by which the launcher asks for node rank 0.
        """
        self.make_link(master)
        self.serve()
        is_new = self.first.joins_others  # so it has no launcher yet
        if is_new:
            prepare(self.launcher, self.first, self.mode, self.arguments, self.setup)
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
                if are_dead and self.launcher.terminated_at and isinstance(self.link, Link):
                    parting = self.link.part()
                self.launcher.on_stop = lambda: None  # the message is not to be written over
                self.drain()
                self.round.page = self.round.progress.page("finished")
                log, is_told = self.first.termination_log, end is verdict and self.is_told
                code = conclude(end, self.round.page, log, quietly=is_told)
                if self.beats is not None and not self.silence():
                    self.beats.leave()
                self.drain(LOG_SECONDS)
                if parting is not None:
                    parting.join(PART_SECONDS)
                return code
            self.begin(self.begun())

    def place(self) -> tuple[int, int] | None:
        """The rank that this pod has got, and its first round with it; None if it has got none."""
        own = self.group.place_of(print_of(self.first.pod_uid)) if self.group else None
        return own or (self.link.place if isinstance(self.link, Link) else None)

    def new_place(self) -> tuple[int, int] | None:
        """The same where it is not taken yet, and that round is wanted: no rank before it lives."""
        found, agents = self.place(), (self.group, self.link)
        if found is None or found[0] == self.first.node_rank:
            return None
        return found if any(each and each.order.round >= found[1] for each in agents) else None

    def reach_out(self, number: int) -> None:
        """Be in touch with rank 0's agent, for a group that may go on while others are missing."""
        if self.first.is_elastic and isinstance(self.link, Link) and not self.link.is_alive():
            self.link.tell(self.first.node_rank, Node(number, CLEAN))

    def wait_for_place(self) -> Verdict | None:
        """Wait, as a spare, for a rank; the end where the group, or this pod, ends before."""
        heard_at, stop = time.monotonic(), None
        if isinstance(self.link, Link):
            self.link.tell(self.first.node_rank, Node(0, CLEAN))
        say("this pod is a spare: it waits for a node rank")
        while stop is None and time.monotonic() - heard_at < HEAD_SECONDS:
            found = self.place()
            if found is not None:
                self.take_place(*found)
                return None
            if self.link is None or self.link.is_heard():
                heard_at = time.monotonic()
            self.launcher.pause(1.0)
            stop = self.launcher.terminated_at
        if stop is not None:
            return judge_stop(stop)
        return unready(f"node rank 0 has not been heard for {HEAD_SECONDS:.0f} s")

    def take_place(self, rank: int, since: int) -> None:
        """Be the pod of a node rank from now on, as if it had been made for it."""
        config = self.first
        say(f"this pod gets node rank {rank}")
        config.node_rank, config.round, config.is_spare = rank, since, False
        self.round.page = self.round.progress.page("waiting")
        self.setup.tell_ranks_apart(config)
        if rank == 0 and isinstance(self.link, Link):
            self.link.is_over = True
            self.link, config.master_addr = self.group, config.pod_ip
        self.make_beats(config.master_addr)

    def serve(self) -> None:
        """Serve what this pod has to tell."""
        from ddpjob_agent.server import Pages, serve  # takes 40 ms

        def hear(report: Any) -> None:
            self.round.progress.hear(report)

        follow = self.follow if self.link is not None else None
        its, token = (self.group, self.token, follow), self.setup.callback_token
        serve(self.first, Pages(self.page, lambda: self.round.hangs.show(), *its, hear, token))

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Have the ranks' last lines in the log before anything else, if it takes them in time."""
        if self.setup.output is not None:
            self.setup.output.drain(seconds)

    def leave(self, verdict: Verdict | None) -> Verdict | None:
        """Leave a round that has ended so; None where another one may begin, else the end."""
        if verdict is None:
            gently = self.link is not None and self.link.order.gently
            self.launcher.stop(max(STOP_SECONDS, self.first.grace_seconds if gently else 0))
        elif not self.may_repeat(verdict):
            return verdict
        else:
            self.tell_failure(verdict)
        if not self.launcher.kill_rest(spares_server=True):
            words = f"a process of round {self.round.config.round} cannot be killed"
            return verdict or unready(words)
        if verdict is not None and not self.is_asked_on():
            return verdict
        return self.wait_for_others(verdict)

    def may_repeat(self, verdict: Verdict) -> bool:
        """Whether the operator may have this pod try again."""
        is_stopped = self.launcher.terminated_at is not None or self.ends_it()
        may_pass = (*REPEATABLE, *(["Rendezvous"] if self.first.is_elastic else []))
        return self.link is not None and verdict.reason in may_pass and not is_stopped

    def tell_failure(self, verdict: Verdict) -> None:
        """Tell the group, the log, and whoever may read the termination message."""
        assert self.link is not None
        number, log = self.round.config.round, self.first.termination_log
        self.launcher.on_stop = lambda: None  # the message is not to be written over
        self.round.page = self.round.progress.page("failed")
        message = termination_message(verdict, self.round.page)
        write_termination(log, message)
        # The log is emptied as the next round begins; for who looks into the pod.
        write_termination(os.path.join(self.first.run_dir, FAILURE), message)
        failure = failure_of(verdict.agent_exit, message)
        self.link.tell(self.first.node_rank, Node(number, FAILED, failure))
        self.drain()
        announce(verdict)
        self.is_told = True

    def is_asked_on(self) -> bool:
        """Whether another round is asked for, while this pod waits with its failure."""
        link, number = self.link, self.round.config.round
        return self.wait(
            lambda: self.wanted() > number or self.new_place() is not None,
            lambda: link is None or link.order.ends,
        )

    def wait_for_others(self, verdict: Verdict | None, *, is_new: bool = False) -> Verdict | None:
        """Be clean for the round that is wanted until it may begin; the end if it never does."""
        assert self.link is not None
        number, told = max(self.wanted(), self.first.round), (0, False)
        tidy(self.first.run_dir)
        self.launcher.on_stop = lambda: None
        if self.first.code_dir and not is_new:
            from ddpjob_agent.code import lay_down  # few jobs need it

            problem = lay_down(self.first, self.news.append)
            if problem is not None:
                self.round.progress = Progress(self.first.of_round(number))
                return problem

        def has_begun() -> bool:
            nonlocal number, told
            if (place := self.new_place()) is not None:
                self.take_place(*place)
                told = 0, False
            link = self.link
            assert link is not None
            # Perhaps another pod has been lost meanwhile.
            number = max(number, self.wanted(), self.first.round)
            if told != (number, self.wanted() == number):  # before the order it is not taken in
                told = number, self.wanted() == number
                link.tell(self.first.node_rank, Node(number, CLEAN))
            return link.order.begun >= number and not is_out()

        def is_out() -> bool:
            return self.is_out() and not is_new

        if self.wait(has_begun, is_out):
            return None
        stop, words = self.launcher.terminated_at, self.silence()
        if stop is not None and not words:
            return verdict or judge_stop(stop)
        # This round has made no step.
        self.round.progress = Progress(self.first.of_round(number))
        if words:
            return silent(words)
        if self.is_out():
            return unready("another pod is there in the place of this one")
        return unready(f"not all nodes were ready for round {number} in time")

    def wait(self, holds: Callable[[], bool], is_vain: Callable[[], bool]) -> bool:
        """Wait until something holds.

        False where it does not in time, or SIGTERM comes. There is more time while rank 0's agent
        waits for another pod, or its own pod is lost.
        """
        begin = time.monotonic()
        now, until = begin, begin + WAIT_SECONDS
        while self.launcher.terminated_at is None and not self.ends_it():
            if holds():
                return True
            if is_vain() or now > until:
                return False
            now, link = time.monotonic(), self.link
            if link is not None and (link.order.waits or not link.is_heard()):
                if not link.was_heard:
                    return False
                most = REPLACED_SECONDS if link.is_heard() else HEAD_SECONDS
                until = max(until, min(begin + most, now + WAIT_SECONDS))
            self.launcher.pause(1.0)
        return False

    def begin(self, number: int) -> None:
        """Begin a round."""
        size = self.link.order.size if self.link is not None else 0
        config = self.first.of_round(number, size)
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
        self.round = self.make_round(config)
        self.round.progress.ignore_file()
        start(self.launcher, config, self.mode, self.arguments, self.setup)
