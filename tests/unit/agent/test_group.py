"""What rank 0's agent knows of all nodes, how it is told, and what it tells them."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent import server
from ddpjob_agent.config import Config
from ddpjob_agent.failures.failures import Failure
from ddpjob_agent.failures.verdict import Verdict, termination_message
from ddpjob_agent.nodes.group import (
    CLEAN,
    ENDED,
    FAILED,
    MOST_ASKED,
    MOST_DEAD,
    MOST_ENDED,
    MOST_FAILURES,
    MOST_HELD,
    RUNNING,
    Group,
    Node,
    Order,
    failure_of,
)
from ddpjob_agent.nodes.lease import Beat, Head
from ddpjob_agent.nodes.reading import read_node, read_order
from ddpjob_agent.records import compact
from ddpjob_agent.server import Pages, hold_operator, serve
from tests.cluster.processes import free_ports
from tests.unit.agent.samples import ask, config, until

HOST, SECRET = "127.0.0.1", "s3cret"


def group_of(nnodes: int) -> Group:
    return Group(nnodes, lambda: None)


def tell(group: Group, number: int, state: str, *ranks: int) -> None:
    for rank in ranks:
        group.tell(rank, Node(number, state))


def failing(at: float, **more: Any) -> Node:
    return Node(0, FAILED, {"exit_code": 1, "message": {"time": at, **more}})


# ---- The barrier


def test_no_round_begins_before_every_node_is_clean_for_it() -> None:
    group = group_of(3)
    tell(group, 0, RUNNING, 0, 1, 2)
    group.want(1, ends=False)
    for rank in range(3):
        assert group.order == Order(1, 0)
        tell(group, 1, CLEAN, rank, rank)
    assert group.order == Order(1, 1)


def test_clean_for_an_earlier_round_is_not_clean_for_this_one() -> None:
    group = group_of(2)
    group.want(1, ends=False)
    tell(group, 1, CLEAN, 0)
    group.want(2, ends=False)
    tell(group, 1, CLEAN, 1)
    tell(group, 2, CLEAN, 1)
    assert group.order == Order(2, 0)
    tell(group, 2, CLEAN, 0)
    assert group.order == Order(2, 2)


def test_a_round_of_which_nobody_was_told_is_no_news() -> None:
    group = group_of(1)
    tell(group, 7, CLEAN, 0)
    assert group.nodes == {}
    group.want(1, ends=False)
    tell(group, 1, CLEAN, 0)
    assert group.order == Order(1, 1), "what it said of round 7 is not in the way"


def test_what_a_node_said_before_undoes_nothing_when_it_comes_late() -> None:
    """A request that was taken back may be read after the one that came in its place."""
    group = group_of(1)
    group.want(1, ends=False)
    tell(group, 1, FAILED, 0)
    before, node = group.serial, group.nodes[0]
    tell(group, 0, FAILED, 0)
    tell(group, 1, CLEAN, 0)
    assert (group.nodes[0], group.serial) == (node, before)


def test_a_group_runs_once_all_its_nodes_do_and_while_some_have_failed() -> None:
    group = group_of(2)
    tell(group, 0, RUNNING, 0)
    assert not group.page()["running"]
    tell(group, 0, RUNNING, 1)
    assert group.page()["running"]
    tell(group, 0, FAILED, 1)
    assert group.page()["running"], "it did run: a failure is a failure of a job that ran"
    group.want(1, ends=False)
    assert not group.page()["running"]
    tell(group, 1, CLEAN, 0, 1)
    assert not group.page()["running"]
    tell(group, 1, RUNNING, 0, 1)
    assert group.page()["running"]


def test_nodes_that_have_ended_are_told_and_wake_nobody_before_one_has_failed() -> None:
    group = group_of(9)
    tell(group, 0, RUNNING, *range(9))
    before = group.serial
    end = {"exit_code": 0, "message": {"progress": {"step": 8}}}
    for rank in range(1, 9):
        group.tell(rank, Node(0, ENDED, end))
    assert group.page()["running"] and len(group.page()["failures"]) == MOST_ENDED
    assert group.serial == before
    group.tell(0, failing(1.0, peer=True))
    told = [failure["node_rank"] for failure in group.page()["failures"]]
    assert told == [0, *range(1, MOST_ENDED + 1)]


# ---- Pods in the place of others


def test_a_round_begins_with_the_pod_that_is_there_in_the_place_of_another() -> None:
    group = group_of(2)
    tell(group, 0, RUNNING, 0, 1)
    group.want(1, False, {1: ""})
    assert group.order == Order(1, 0, waits=True)
    tell(group, 1, CLEAN, 0)
    for pod in ("old", "new"):  # of neither is it known that it is the one
        assert not group.is_member(1, pod)
        group.tell(1, Node(1, CLEAN), pod)
    group.want(1, False, {1: "new"})
    group.tell(1, Node(1, CLEAN), "old")
    assert group.order == Order(1, 0, waits=True)
    group.tell(1, Node(1, CLEAN), "new")
    assert group.order == Order(1, 1)
    tell(group, 1, RUNNING, 0)
    group.tell(1, Node(1, RUNNING), "new")
    assert group.page()["running"]
    group.tell(1, Node(1, FAILED), "old")
    assert not group.page()["failures"]
    group.want(2, False, {1: "new"})
    assert group.order == Order(2, 1), "a restart in place waits for no pod"


def test_another_one_is_lost_while_the_round_waits() -> None:
    group = group_of(3)
    tell(group, 0, RUNNING, 0, 1, 2)
    group.want(1, False, {1: ""})
    tell(group, 1, CLEAN, 0, 2)
    group.want(2, False, {1: "", 2: ""})
    tell(group, 2, CLEAN, 0)
    group.want(2, False, {1: "one", 2: "two"})
    group.tell(1, Node(2, CLEAN), "one")
    assert group.order == Order(2, 0, waits=True)
    group.tell(2, Node(2, CLEAN), "two")
    assert group.order == Order(2, 2)


def hello(head: Head, rank: int, pod: str) -> float:
    """The stamp of the answer to a node's heartbeat, for the next one to send back."""
    now = head.clock()
    answer = head.take(Beat(rank, now, pod=pod), "there", now)
    assert answer is not None
    return answer.stamp


def test_a_pod_that_was_there_and_gets_a_rank_is_missed_if_it_is_not_heard() -> None:
    """A spare whose node dies in the same moment, and a node of a rank that is no more."""
    now = 100.0
    group = group_of(4)
    group.head = head = Head(10.0, lambda: now)
    head.take(Beat(3, now, echo=hello(head, 3, "fourth"), pod="fourth"), "there", now)
    group.hold_node(Order(1), spare="spare1")
    pods = {0: "nobody", 1: "spare1", 2: "fourth"}
    group.want(1, False, pods, since=1, size=3)
    now += 9.0
    head.look(now)
    assert not any(head.unheard.values())
    now += 2.0
    head.take(Beat(2, now, pod="fourth"), "there", now)
    head.look(now)
    assert head.unheard == {1: True}, "the first is new, and may take its time"


def test_no_round_begins_while_another_one_is_to_follow_it() -> None:
    """Ranks of a pod that is left out may live in the round before."""
    group = group_of(3)
    tell(group, 0, RUNNING, 0, 1, 2)
    group.want(1, ends=False)
    tell(group, 1, CLEAN, 0, 1)
    group.want(1, False, size=2, is_held=True)
    assert group.order == Order(1, 0, waits=True, size=2)
    tell(group, 1, CLEAN, 0, 1)
    assert group.order.begun == 0
    group.want(2, False, size=2)
    tell(group, 2, CLEAN, 0, 1)
    assert group.order == Order(2, 2, size=2)


def test_ranks_have_time_to_save_before_a_larger_group_unless_some_have_failed() -> None:
    group = group_of(3)
    group.want(1, False, size=2)
    tell(group, 1, RUNNING, 0, 1)
    pods = {2: "spare"}
    group.want(2, False, pods, since=2, size=3)
    assert group.order.gently and group.place_of("spare") == (2, 2)
    group.want(2, False, {**pods, 1: "moved"}, since=2, size=3)
    assert group.order.gently, "it is the same one"
    group.want(3, False, size=2)
    assert not group.order.gently
    tell(group, 3, FAILED, 0)
    group.want(4, False, pods, since=4, size=3)
    assert not group.order.gently


# ---- The operator's order


def test_no_order_goes_back() -> None:
    orders: list[Order] = []
    group = group_of(1)
    group.on_order = lambda: orders.append(group.order)
    group.want(1, ends=False)
    group.want(0, ends=True)
    group.want(1, ends=False)
    assert orders == [Order(1, 0)]
    group.want(1, ends=True)
    group.want(1, ends=False)
    assert orders[1:] == [Order(1, 0, True), Order(1, 0)]


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("round=1&after=1&hold=0&ends=0", Order(1)),
        ("", Order()),
        ("round=2147483648&ends=1", Order()),
        ("round=2&round=1", Order(1)),
        ("round=3&pods=1:AbCdEf,7:", Order(3, 0, waits=True)),
        ("round=3&pods=x:AbCdEf", Order(3)),
    ],
)
def test_an_order_is_read_from_the_query_or_is_none(query: str, order: Order) -> None:
    group = group_of(1)
    page = hold_operator(group, query)
    assert (group.order, page["round"]) == (order, order.round)


# ---- Requests that are held


def free(room: threading.Semaphore) -> int:
    return int(room._value)


def test_a_request_is_held_until_there_is_news_for_it() -> None:
    group = group_of(2)
    with ThreadPoolExecutor() as pool:
        node = pool.submit(group.hold_node, Order())
        operator = pool.submit(group.hold_operator, group.serial, 60)
        until(lambda: free(group.held) + free(group.asked) == MOST_HELD + MOST_ASKED - 2)
        group.tell(1, failing(1.0))
        operator.result(60)
        assert not node.done(), "a failure is none of its business"
        group.want(1, ends=False)
        assert node.result(60) == 0.0
    assert group.hold_node(Order()) == 0.0, "it does not know yet"
    group.hold_operator(None, 60)
    group.hold_operator(group.serial - 1, 60)
    assert (free(group.held), free(group.asked)) == (MOST_HELD, MOST_ASKED)


def test_the_requests_that_are_held_are_bounded_and_leave_room_for_the_operator() -> None:
    group = group_of(900)
    for _ in range(MOST_HELD):
        assert group.held.acquire(blocking=False)
    assert group.hold_node(group.order) == 3.0, "300 of them in a second"
    with ThreadPoolExecutor(MOST_ASKED) as pool:
        held = [pool.submit(group.hold_operator, group.serial, 60) for _ in range(MOST_ASKED)]
        until(lambda: free(group.asked) == 0)
        group.hold_operator(group.serial, 60)  # at once
        assert not any(each.done() for each in held)
        group.tell(0, failing(1.0))


# ---- What the operator is told


def test_of_many_failures_those_that_explain_most_are_told_the_first_with_its_traceback() -> None:
    group = group_of(2000)
    for rank in range(2000):
        group.tell(rank, failing(5000.0 - rank, peer=rank not in (3, 4), traceback="x" * 3000))
    told = group.page()["failures"]
    assert [each["node_rank"] for each in told[:4]] == [4, 3, 1999, 1998]
    assert len(told) == MOST_FAILURES
    assert ["traceback" in each["message"] for each in told[:3]] == [True, False, False]
    kept = [node for node in group.nodes.values() if "traceback" in (node.failure or {})["message"]]
    assert len(kept) == MOST_FAILURES
    group.want(1, ends=False)
    assert group.page()["failures"] == []


def test_a_node_tells_its_whole_termination_message() -> None:
    failure = Failure("ValueError: b\u00f6\ud800m", 7.0, rank=3, traceback="x" * 9000)
    message = termination_message(Verdict("Exception", 1, failure), {"round": 2, "loss": 0.5})
    told = failure_of(1, message)
    assert told["exit_code"] == 1
    assert (told["message"]["rank"], told["message"]["round"]) == (3, 2)
    assert told["message"]["message"] == "ValueError: b\u00f6?m"
    assert set(told["message"]["traceback"]) == {"x"}


# ---- What comes from other pods

GOOD: dict[str, Any] = {"attempt": 0, "node_rank": 1, "round": 0, "state": FAILED, "failure": None}
TOLD: dict[str, Any] = {"exit_code": 1, "message": {"time": 1.5}}


def with_each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{**GOOD, name: value} for value in values]


def nested(depth: int) -> Any:
    text = "[" * depth + "]" * depth
    with suppress(RecursionError):
        return json.loads(text)
    return "too deep for json"


@pytest.mark.parametrize(
    "content",
    [
        *(None, [GOOD], {}),
        *with_each("attempt", 1, "0"),
        *with_each("node_rank", -1, 2, "1", True, 10**30),
        *with_each("round", -1, 2**31, "0", 0.0),
        *with_each("state", "done", []),
        *with_each("failure", "x", {}, {"exit_code": 1}),
        *with_each("failure", {**TOLD, "exit_code": "1"}, {**TOLD, "message": "x"}),
        {**GOOD, "failure": {**TOLD, "message": {"x": "\u4e2d" * 1400}}},
    ],
    ids=lambda content: repr(content)[:60],
)
def test_what_is_no_news_of_a_node_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError):
        read_node(content, config(tmp_path, DDPJOB_NNODES="2"))


def test_the_operator_hears_of_dead_pods_until_the_next_round_begins() -> None:
    group = Group(1, lambda: None)
    before = group.page()
    assert "dead" not in before
    for number in range(MOST_DEAD + 1):
        group.bury(f"{number:06}")
    group.bury("longer than a print")
    assert len(group.page()["dead"]) == MOST_DEAD and group.serial > before["serial"]
    group.want(1, ends=False)
    group.tell(0, Node(1, CLEAN))
    assert "dead" not in group.page()


@pytest.mark.parametrize("at", [None, "x", True, 10**400, float("nan"), 1e300], ids=repr)
def test_a_time_of_any_kind_keeps_no_failure_from_the_operator(tmp_path: Path, at: Any) -> None:
    group, ours = group_of(2), config(tmp_path, DDPJOB_NNODES="2")
    body = {**GOOD, "failure": {"exit_code": 1, "message": {"time": at}}}
    group.tell(*read_node(body, ours))
    group.tell(0, failing(5.0))
    told = group.page()["failures"]
    assert {each["node_rank"] for each in told} == {0, 1}
    compact(told)


def test_a_message_is_refused_before_it_is_too_deep_to_be_told(tmp_path: Path) -> None:
    ours, refused, taken = config(tmp_path, DDPJOB_NNODES="2"), 0, 0
    for depth in range(1, 1100):
        group = group_of(2)
        body = {**GOOD, "failure": {"exit_code": 1, "message": {"x": nested(depth)}}}
        try:
            group.tell(*read_node(body, ours))
        except (ValueError, RecursionError):
            refused += 1
            continue
        compact({**group.page(), "progress": None})
        taken += 1
    assert taken > 100


@pytest.mark.parametrize(
    "content",
    [
        *([], {"round": 1}, {"round": 2**31, "begun": 0}, {"round": 0, "begun": True}),
    ],
    ids=repr,
)
def test_what_is_no_order_is_refused(content: Any) -> None:
    with pytest.raises(ValueError):
        read_order(content)


@pytest.mark.parametrize(
    ("again", "pause"), [(2.5, 2.5), (1e9, 60.0), (-1, 0.0), ("9", 0.0), (10**400, 0.0)], ids=repr
)
def test_when_to_ask_again_is_bounded(again: Any, pause: float) -> None:
    order = {"round": 2, "begun": 1, "ends": "yes", "again": again}
    assert read_order(order) == (Order(2, 1), pause)


# ---- The pages


class Agent:
    """Rank 0's agent as others reach it."""

    def __init__(self, folder: Path, nnodes: int = 2, token: str = SECRET) -> None:
        (port,) = free_ports(1)
        changes = {"DDPJOB_AGENT_PORT": str(port), "DDPJOB_NNODES": str(nnodes)}
        self.config: Config = config(folder, **changes)
        self.group = group_of(nnodes)
        self.token = token
        place = {"namespace": "team", "job": "digits", "attempt": 0, "round": 0, "node_rank": 0}
        page = {**place, "state": "running", "step": 3}
        serve(self.config, Pages(lambda: page, lambda: "stacks", self.group, token))

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        return ask(self.config, method, path, body, headers)

    def allowed(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        return self.ask(method, path, body, Authorization=f"Bearer {SECRET}")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    yield Agent(tmp_path_factory.mktemp("agent"))


def half_sent(agent: Agent, head: bytes = b"GET /progress HTTP/1.1\r\nA: ") -> socket.socket:
    connection = socket.create_connection((HOST, agent.config.agent_port), timeout=200)
    connection.sendall(head)
    return connection


def end_of(connection: socket.socket) -> bytes:
    """All that is answered, until the other side ends the connection."""
    text = b""
    with connection, suppress(ConnectionError):
        while more := connection.recv(4096):
            text += more
    return text


def test_half_sent_heads_are_few_and_keep_nobody_out(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 of them, of 6 MB each and kept by a byte now and then, took 750 MB of the training's."""
    monkeypatch.setattr(server, "GUEST_SECONDS", 0.05)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1000.0)
    kept = [half_sent(agent) for _ in range(2 * server.MOST_GUESTS)]
    assert agent.allowed("GET", "/group?round=0")[0] == 200
    assert agent.ask("GET", "/progress")[0] == 200
    assert [end_of(connection) for connection in kept[: server.MOST_GUESTS]] == (
        [b""] * server.MOST_GUESTS
    )
    for connection in kept:
        connection.close()


def test_a_byte_now_and_then_keeps_no_connection(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    with half_sent(agent) as connection, suppress(ConnectionError):
        connection.settimeout(0.1)
        while True:
            connection.sendall(b"a")
            with suppress(TimeoutError):
                if connection.recv(1) == b"":
                    break


def test_a_head_has_so_many_bytes(agent: Agent) -> None:
    connection = half_sent(
        agent, b"GET /progress HTTP/1.1\r\nA: " + b"a" * server.HEAD_BYTES + b"\r\n\r\n"
    )
    assert b"200 OK" not in end_of(connection)


def test_who_waits_for_an_order_is_no_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_GUESTS", 1)
    monkeypatch.setattr(server, "GUEST_SECONDS", 0.0)
    agent = Agent(tmp_path)
    known = vars(agent.group.order)
    body = json.dumps({**GOOD, "state": RUNNING, "failure": None, "known": known}).encode()
    with ThreadPoolExecutor() as threads:
        held = threads.submit(agent.allowed, "POST", "/member", body)
        until(lambda: free(agent.group.held) == MOST_HELD - 1)
        for _ in range(3):
            assert agent.ask("GET", "/progress")[0] == 200
        agent.group.want(agent.group.order.round + 1, ends=False)
        assert held.result()[0] == 200


MEMBER = json.dumps({**GOOD, "state": RUNNING, "known": {"round": 9, "begun": 9}}).encode()


@pytest.mark.parametrize(("method", "path"), [("GET", "/group?round=5"), ("POST", "/member")])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": SECRET},
        {"Authorization": f"Bearer {SECRET[:-1]}"},
        {"Authorization": "Bearer \u00fc"},
    ],
    ids=repr,
)
def test_without_the_token_nothing_is_told_and_nothing_is_taken_in(
    agent: Agent, method: str, path: str, headers: dict[str, str]
) -> None:
    status, body = agent.ask(method, path, MEMBER if method == "POST" else None, **headers)
    assert status == 401
    assert b"serial" not in body and b"begun" not in body
    assert (agent.group.order, agent.group.nodes) == (Order(), {})


def test_an_empty_token_lets_nobody_in(tmp_path: Path) -> None:
    agent = Agent(tmp_path, token="")
    assert agent.ask("GET", "/group?round=5", Authorization="Bearer ")[0] == 401


def test_the_other_pages_are_open_and_there_are_no_more(agent: Agent) -> None:
    assert json.loads(agent.ask("GET", "/progress")[1])["step"] == 3
    assert agent.ask("GET", "/stacks") == (200, b"stacks")
    assert agent.ask("GET", "/metrics")[0] == 200
    for path in ("/", "/groups", "/progress?x"):
        assert agent.allowed("GET", path)[0] == agent.allowed("POST", path, MEMBER)[0] == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff" * 100, 400),
        (b"[" * 9000, 400),
        (json.dumps({**GOOD, "known": []}).encode(), 400),
        (MEMBER.ljust(16 * 1024 + 1), 413),
    ],
    ids=repr,
)
def test_what_is_no_news_gets_an_answer_and_changes_nothing(
    agent: Agent, body: bytes, status: int
) -> None:
    assert agent.allowed("POST", "/member", body)[0] == status
    assert agent.group.nodes == {}


def test_a_node_tells_and_the_operator_reads_it(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    status, body = agent.allowed("POST", "/member", MEMBER.ljust(16 * 1024))
    assert (status, json.loads(body)) == (200, {**vars(Order()), "again": 0.0})
    agent.group.tell(0, Node(0, RUNNING))
    status, body = agent.allowed("GET", "/group?round=0&after=0&hold=20&ends=0")
    page = json.loads(body)
    assert status == 200 and page["running"] and page["progress"]["step"] == 3
    serial = page["serial"]
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(agent.allowed, "GET", f"/group?round=0&after={serial}&hold=20&ends=0")
        until(lambda: free(agent.group.asked) == MOST_ASKED - 1)
        told = {**json.loads(MEMBER), "state": FAILED, "failure": TOLD}
        agent.allowed("POST", "/member", json.dumps(told).encode())
        page = json.loads(asked.result(60)[1])
    assert page["failures"] == [{"node_rank": 1, **TOLD}] and page["serial"] > serial
