"""How an agent is in touch with the others: whom it follows, and when it takes another rank."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_agent.nodes.group import Order, print_of
from ddpjob_agent.nodes.heartbeat import HeadHeartbeats, MemberHeartbeats
from ddpjob_agent.nodes.link import Link
from ddpjob_agent.nodes.peers import Peers
from ddpjob_agent.processes import Launcher
from tests.unit.agent.samples import config

HOST, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peers]]:
    """At the end their threads end, and their sockets are closed."""
    monkeypatch.setattr(Launcher, "wake_up", lambda _: None)  # no process waits
    found = list[Peers]()
    yield found
    for each in found:
        if isinstance(each.link, Link):
            each.link.is_over = True
        if each.beats is not None:
            each.beats.is_over = True
            if each.beats.ident is not None:
                each.beats.join(60)
            if each.beats.socket is not None:
                each.beats.socket.close()


def peers(folder: Path, made: list[Peers], rank: int, **changes: str) -> Peers:
    ours = config(
        folder,
        DDPJOB_NNODES="3",
        DDPJOB_NODE_RANK=str(rank),
        DDPJOB_TOKEN="t0ken",
        DDPJOB_RESTART="InPlace",
        DDPJOB_NODE_TIMEOUT="600",
        DDPJOB_POD_IP=HOST,
        DDPJOB_POD_UID=f"uid-{rank}",
        PET_NNODES="@ddpjob-nnodes@",
        **changes,
    )
    found = Peers(ours, Launcher(60))
    found.join("digits-0-0.digits")
    made.append(found)
    return found


def test_an_agent_whose_ranks_wait_reaches_out_to_the_pod_that_has_become_rank_0s(
    tmp_path: Path, made: list[Peers]
) -> None:
    """The name that it was given may never be there."""
    ours = peers(tmp_path, made, 1)
    link = ours.link
    assert isinstance(link, Link)
    ours.reach_out(0, False)
    assert not link.is_alive()
    assert ours.follow(OTHER) and link.host == OTHER and ours.config.master_addr == OTHER
    ours.reach_out(0, False)
    assert link.is_alive()


def test_rank_0s_agent_follows_another_one_only_while_it_ends(
    tmp_path: Path, made: list[Peers]
) -> None:
    ours = peers(tmp_path, made, 0)
    assert ours.follow(HOST) and not ours.follow(OTHER) and ours.link is ours.group
    ours.launcher.terminated_at = time.time()
    assert ours.follow(OTHER) and isinstance(ours.link, Link)
    assert isinstance(ours.beats, MemberHeartbeats) and ours.beats.host == OTHER


def test_a_pod_takes_another_rank_once_its_round_is_ordered(
    tmp_path: Path, made: list[Peers]
) -> None:
    ours = peers(tmp_path, made, 2)
    assert ours.follow(HOST), "it is to be rank 0 itself, and is heard as such at once"
    beats = ours.beats
    assert isinstance(beats, HeadHeartbeats) and ours.group is not None
    pods = {0: print_of("uid-2")}
    ours.group.want(0, False, pods, since=1, size=2, is_held=True)
    assert ours.place() == (0, 1) and ours.new_place() is None
    ours.group.want(1, False, pods, since=1, size=2)
    assert ours.new_place() == (0, 1)
    ours.become(0)
    assert ours.new_place() is None and ours.beats is beats
    assert ours.order == Order(1, 0, waits=True, size=2)
