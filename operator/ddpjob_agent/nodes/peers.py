"""How this pod is in touch with the other nodes' agents: what it tells, and what it is told."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from ddpjob_agent.nodes.group import CLEAN, Group, Node, Order, print_of
from ddpjob_agent.nodes.link import Link
from ddpjob_agent.program import keep, path_of

if TYPE_CHECKING:
    from ddpjob_agent.config import Config
    from ddpjob_agent.nodes.heartbeat import Heartbeats
    from ddpjob_agent.processes import Launcher


class Peers:
    """The other nodes' agents; none where there is no token for them."""

    def __init__(self, config: Config, launcher: Launcher) -> None:
        """The launcher is woken with each order, and killed where others are not heard for long.

        `config` gets another node rank as this pod does.
        """
        self.config, self.launcher = config, launcher
        self.token = config.token if config.in_place or config.node_timeout else ""
        self.group: Group | None = None  # rank 0's, and that of who may become it
        self.link: Group | Link | None = None
        self.beats: Heartbeats | None = None
        self.hears_all = False  # as rank 0 does
        self.has_moved = False  # to the pod that has become rank 0's
        self.lock = threading.RLock()

    def join(self, master: str) -> None:
        """Be in touch with them, from now on or once there is something to tell."""
        config = self.config
        if not self.token:
            return
        is_head = config.node_rank == 0
        if is_head or config.is_spare or config.is_elastic:
            wake_up = self.launcher.wake_up
            self.group = Group(config.nnodes, wake_up, waits=config.joins_others)
            self.group.has = self.has
        if config.in_place:
            self.link = self.group if is_head else self.make_link(master)
        self.make_beats(master, is_head=is_head)
        if config.round:  # the others are there
            self.listen()

    def make_link(self, host: str) -> Link:
        """Another node's way to rank 0's agent."""
        return Link(self.config, self.token, host, self.launcher.wake_up)

    def make_beats(self, master: str, *, is_head: bool) -> None:
        """Have what listens for the other nodes, or to rank 0's here. A spare is no node."""
        config, old, on_lost = self.config, self.beats, self.launcher.kill_now
        if self.hears_all and is_head:
            return
        if is_head and self.group is not None and config.is_elastic:
            from ddpjob_agent.saves import watch

            group = self.group
            watch(config.checkpoint_dir, lambda: group.nnodes < config.nnodes, group.note_save)
        if config.node_timeout and not config.is_spare:
            from ddpjob_agent.nodes.heartbeat import HeadHeartbeats, MemberHeartbeats

            if is_head:
                assert self.group is not None
                self.beats = HeadHeartbeats(config, self.token, self.group, on_lost)
            else:
                self.beats = MemberHeartbeats(config, self.token, master, on_lost)
            if old is not None:
                old.is_over = True
        self.hears_all = is_head and not config.is_spare

    def listen(self) -> None:
        """Listen to others from now on, once."""
        with self.lock:
            if self.beats is not None:
                self.beats.begin()

    def follow(self, address: str) -> bool:
        """Be in touch with the pod that has become rank 0's, from any thread; whether it can be so.

        Rank 0's own agent follows another one only while it ends.
        """
        with self.lock:
            link, config = self.link, self.config
            if address == (link.host if isinstance(link, Link) else config.pod_ip):
                return True
            if not isinstance(link, Link) and self.launcher.terminated_at is None:
                return False
            config.master_addr, self.has_moved = address, True
            if isinstance(link, Link):
                link.move(address)
            else:
                self.link = self.make_link(address)
            self.make_beats(address, is_head=address == config.pod_ip)
            self.listen()
            return True

    def become(self, rank: int) -> None:
        """Be the node with this rank from now on."""
        with self.lock:
            config, is_head = self.config, rank == 0
            config.node_rank = rank
            if is_head and isinstance(self.link, Link):
                self.link.is_over = True
                self.link, config.master_addr = self.group, config.pod_ip
            self.make_beats(config.master_addr, is_head=is_head)
            self.listen()

    @property
    def order(self) -> Order:
        """What this pod is told."""
        return Order() if self.link is None else self.link.order

    def tell(self, node: Node) -> None:
        """Tell the group of this node."""
        to = self.link or self.group  # which may hear of no other node's
        if to is not None:
            to.tell(self.config.node_rank, node)

    def reach_out(self, number: int, is_known: bool) -> None:
        """Be in touch before ranks run, in a group that may go on while others are missing.

        Whether rank 0's name `is_known`: nobody is to ask for it before the launcher.
        """
        is_asked = isinstance(self.link, Link) and not self.link.is_alive()
        if self.config.is_elastic and is_asked and (is_known or self.has_moved):
            self.tell(self.clean(number))

    def clean(self, number: int) -> Node:
        """This node, whose ranks may begin a round."""
        return Node(number, CLEAN, program=self.config.program)

    def has(self, program: str) -> bool:
        """Whether the program with this print is here."""
        return os.path.exists(path_of(self.config.run_dir, program))

    def bring(self, program: str) -> bool:
        """Have the program with this print here, of rank 0's agent; whether it is here."""
        if not self.has(program) and isinstance(self.link, Link):
            content = self.link.get_program(program)
            with contextlib.suppress(OSError, ValueError):
                if content:
                    keep(self.config.run_dir, content)
        return self.has(program)

    def is_heard(self) -> bool:
        """Whether rank 0's agent is there."""
        return self.link is None or self.link.is_heard()

    def is_out(self) -> bool:
        """Whether another pod is there in the place of this one."""
        return isinstance(self.link, Link) and self.link.is_out

    def silence(self) -> str:
        """Who has not been heard for too long; "" while nobody is missed."""
        return "" if self.beats is None else self.beats.words()

    def ends_it(self) -> str:
        """Who is missed so much that this pod ends. Others than rank 0 wait for another one."""
        return self.silence() if self.link is None or self.link is self.group else ""

    def place(self) -> tuple[int, int] | None:
        """The rank that this pod has got, and its first round with it; None if it has got none."""
        own = self.group.place_of(print_of(self.config.pod_uid)) if self.group else None
        return own or (self.link.place if isinstance(self.link, Link) else None)

    def new_place(self) -> tuple[int, int] | None:
        """The same where it is not taken yet, and that round is wanted: no rank before it lives."""
        found, agents = self.place(), (self.group, self.link)
        if found is None or found[0] == self.config.node_rank:
            return None
        return found if any(each and each.order.round >= found[1] for each in agents) else None
