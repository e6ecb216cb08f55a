"""Rank 0's agent, as the operator asks it for the group."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddpjob.controller.agenthttp import session
from ddpjob.controller.groups import fetch_group
from ddpjob.plan.model import Order
from ddpjob.plan.termination import read_termination
from ddpjob_agent.failures.failures import Failure
from ddpjob_agent.failures.verdict import judge_failures, termination_message
from ddpjob_agent.nodes.group import FAILED, Group, Node, failure_of
from ddpjob_agent.server import Pages, serve
from tests.builders import running
from tests.cluster.processes import free_ports
from tests.unit.agent.samples import config


def metrics(letter: str) -> dict[str, float]:
    """As many of them as an agent reports, with the longest names."""
    return {letter * 60 + f"{number:03}": 1 / 3 for number in range(32)}


@pytest.mark.parametrize("letter", ["x", "ü", "中", "🔥", '"', "\\", "\t"])
async def test_the_largest_failure_reaches_the_operator_in_any_script(
    tmp_path: Path, letter: str
) -> None:
    (port,) = free_ports(1)
    ours = config(tmp_path, DDPJOB_AGENT_PORT=str(port), DDPJOB_NNODES="40")
    page = {"attempt": 0, "round": 0, "node_rank": 0, "source": "file", "step": 3}
    page |= {"metrics": metrics(letter)}
    group = Group(40, lambda: None)
    for rank in range(40):
        verdict = judge_failures([Failure(letter * 4000, 7.0, rank=rank, exception="ValueError")])
        message = termination_message(verdict, {**page, "node_rank": rank, "metrics": metrics("0")})
        group.tell(rank, Node(0, FAILED, failure_of(1, message)))
    serve(ours, Pages(lambda: page, lambda: "", group, "t0ken"))
    pod = replace(running(0), ip="127.0.0.1", agent_port=port, token="t0ken")
    async with session(60) as http:
        answer = await fetch_group(http, pod, Order(0), 0)
        other = replace(pod, token="other")
        assert await fetch_group(http, other, Order(0), 0) is None
    assert answer is not None and answer.progress is not None and answer.progress.step == 3
    assert 9 <= len(answer.round_status().exits) < 32  # those that explain most
    for told in answer.round_status().exits:
        read = read_termination(replace(pod, message=told.message))
        assert read is not None and read.rank == told.rank
        assert read.message and set(read.message) == {letter}
