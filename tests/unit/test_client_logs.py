"""Whose a line is, and which lines are wanted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob import names
from ddpjob.client.follow import Query, check_is_there, choices, select
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import (
    LineMaker,
    LogLine,
    Pod,
    Wanted,
    parse_numbers,
    read_pod,
    with_rank,
)
from ddpjob.errors import NotFound

POD = Pod("digits-3-1", "u", 3, 1, "gpu-1", "running", "")


def line(*, rank: int | None) -> LogLine:
    return LogLine("t", 0, 0, rank, 0, "n", "p", b"")


def made(*texts: bytes, processes: int = 2, beginning: bool = True) -> list[LogLine]:
    maker = LineMaker(POD, processes, from_the_beginning=beginning)
    return [maker.line(text, "2026-01-01T00:00:00Z") for text in texts]


def test_a_rank_is_known_by_the_agents_prefix() -> None:
    lines = made(b"[rank 2] two", b"[rank 3] [rank 2] three", b"torchrun's", b"[rank 0] not here")
    assert [(each.rank, each.text) for each in lines] == [
        (2, "two"),
        (3, "[rank 2] three"),
        (None, "torchrun's"),
        (None, "[rank 0] not here"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("[rank 2]step", "[rank2]: torch's own", "[rank 02] x", "[rank -2] x", "[rank \u0662] x"),
        *("[rank 1000000] x", "ddpjob-agent: [rank 2] x"),
    ],
)
def test_what_only_looks_like_the_agents_prefix_is_none(text: str) -> None:
    (line,) = made(text.encode())
    assert (line.rank, line.text) == (None, text)


def test_the_only_rank_of_a_pod_has_all_lines_but_the_agents() -> None:
    lines = made(b"[rank 7] my words", b"ddpjob-agent: x", processes=1)
    assert [(each.rank, each.text) for each in lines] == [
        (1, "[rank 7] my words"),
        (None, "ddpjob-agent: x"),
    ]


def test_rounds_are_counted_by_the_agents_lines() -> None:
    begins = b"ddpjob-agent: round 2 of attempt 3 begins"
    assert [each.round for each in made(b"a", begins, b"b")] == [0, 2, 2]
    assert [each.round for each in made(b"a", begins, b"b", beginning=False)] == [None, 2, 2]
    # A rank's own words are behind its prefix.
    assert [each.round for each in made(b"[rank 2] " + begins, b"b")] == [0, 0]


def pod(**fields: Any) -> dict[str, Any]:
    owner = {"kind": names.KIND, "name": "digits", "uid": "job-uid", "controller": True}
    status = {"name": "trainer", "state": {"running": {}}}
    found: dict[str, Any] = {
        "metadata": {"name": "digits-0-1", "uid": "u", "ownerReferences": [owner]},
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }
    return found | fields


FAILED = {"terminated": {"exitCode": 3}}
LOOPS = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("trainer", "init", "last", "shown"),
    [
        ("waiting", FAILED, {}, ("fetch", "ended", "exit code 3")),
        ("waiting", {"running": {}}, {}, ("trainer", "waiting", "")),
        ("waiting", LOOPS, FAILED, ("fetch", "running", "exit code 3")),
        ("waiting", {"running": {}}, FAILED, ("trainer", "waiting", "")),
        ("running", FAILED, {}, ("trainer", "running", "")),
        ("terminated", FAILED, {}, ("trainer", "ended", "")),
    ],
)
def test_an_init_container_that_failed_stands_for_the_trainer(
    trainer: str, init: Any, last: Any, shown: tuple[str, str, str]
) -> None:
    body = pod(
        spec={"initContainers": [{"name": "fetch"}], "containers": [{"name": "trainer"}]},
        status={
            "initContainerStatuses": [{"name": "fetch", "state": init, "lastState": last}],
            "containerStatuses": [{"name": "trainer", "state": {trainer: {}}}],
        },
    )
    found = read_pod(body, "digits", "job-uid")
    assert found is not None and (found.container, found.state, found.reason) == shown
    assert found.containers == ("fetch", "trainer")
    asked = read_pod(body, "digits", "job-uid", "trainer")
    assert asked is not None and asked.container == "trainer"


def test_a_sidecar_runs_as_long_as_its_pod() -> None:
    spec = {"initContainers": [{"name": "metrics", "restartPolicy": "Always"}]}
    status = {"initContainerStatuses": [{"name": "metrics", "state": FAILED}]}
    for phase, state in (("Running", "running"), ("Failed", "ended")):
        body = pod(spec=spec, status={**status, "phase": phase})
        found = read_pod(body, "digits", "job-uid", "metrics")
        assert found is not None and found.state == state


def test_a_line_of_another_container_is_no_ranks() -> None:
    beside = Pod("digits-3-1", "u", 3, 1, "gpu-1", "running", "", "metrics")
    maker = LineMaker(beside, 1, from_the_beginning=True)
    found = maker.line(b"ddpjob-agent: round 2 of attempt 3 begins")
    assert (found.rank, found.round, found.place) == (None, None, "a3 n1 metrics")


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "digits-0-1", "uid": "u"},
        {"name": "digits-0-1", "ownerReferences": [{"uid": "job-uid"}]},
        {"name": "digits-0-1", "ownerReferences": [{"uid": "another", "controller": True}]},
        {"name": "other-0-1", "ownerReferences": [{"uid": "job-uid", "controller": True}]},
        {"name": "digits-0-1-x", "ownerReferences": [{"uid": "job-uid", "controller": True}]},
    ],
)
def test_a_pod_of_somebody_else_is_none_of_the_jobs(metadata: Any) -> None:
    assert read_pod(pod(metadata=metadata), "digits", "job-uid") is None


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=4))
def test_ranges_are_sets_of_numbers(spans: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" if more else f"{first}" for first, more in spans)
    assert parse_numbers(text) == {
        n for first, more in spans for n in range(first, first + more + 1)
    }


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "1,,2", "1.5", "9999999", "٣"])
def test_another_text_is_no_set(text: str) -> None:
    with pytest.raises(ValueError, match="must be numbers such as 0,8-11"):
        parse_numbers(text)


def test_pods_are_wanted_by_rank_node_and_attempt() -> None:
    assert Wanted(frozenset({2, 3})).has_pod(POD, 2, 3) and not Wanted(frozenset({0, 1})).has_pod(
        POD, 2, 3
    )
    assert Wanted(nodes=frozenset({1})).has_pod(POD, 2, 3)
    assert not Wanted(nodes=frozenset({0})).has_pod(POD, 2, 3)
    assert not Wanted().has_pod(POD, 2, 4), "of an earlier attempt"
    assert Wanted().has_pod(POD, 2, 2), "of a later one"
    assert Wanted(attempt="all").has_pod(POD, 2, 4) and not Wanted(attempt=2).has_pod(POD, 2, 2)


def test_lines_of_no_rank_come_with_those_of_their_pod() -> None:
    wanted = Wanted(frozenset({3}))
    assert wanted.has_line(line(rank=3)) and wanted.has_line(line(rank=None))
    assert not wanted.has_line(line(rank=2))


# Which lines, if nobody says


def test_what_somebody_asks_for_is_taken() -> None:
    assert select() is None
    assert select(rank=3) == Wanted(frozenset({3}))
    assert select(everything=True) == Wanted()
    assert select(attempt="2") == Wanted(frozenset({0}), attempt=2)
    assert select(attempt="all") == Wanted(attempt="all")
    for attempt in ("-1", "last", "²"):
        with pytest.raises(ValueError, match="attempt: must be a number, current or all"):
            select(attempt=attempt)


def test_ranks_of_a_larger_round_of_an_elastic_job_may_have_left_lines() -> None:
    status = {"nodes": {"desired": 1}, "worldSize": 2}
    body = {"metadata": {"name": "digits"}, "spec": {"nnodes": 2}, "status": status}
    wanted = Wanted(frozenset({3}))
    with pytest.raises(NotFound, match="digits has no rank 3; it has ranks 0 to 1"):
        check_is_there(Snapshot(body), wanted)
    body["spec"] = {"nnodes": 2, "elastic": {}}
    check_is_there(Snapshot(body), wanted)


def chosen(status: dict[str, Any], processes: int, **asked: Any) -> list[Query]:
    job = Snapshot({"spec": {"nprocPerNode": processes}, "status": status})
    return choices(job, None, Query(**asked))


def test_a_failed_job_shows_the_rank_that_failed_first() -> None:
    status: dict[str, Any] = {
        "state": "Failed",
        "failure": {"attempt": 2, "rank": 5, "pod": "digits-2-2", "time": "2026-01-01T00:00:00Z"},
    }
    (query,) = chosen(status, 2, follow=True)
    assert (
        query.wanted == Wanted(frozenset({5}), attempt=2) and query.tail == 50 and not query.follow
    )
    (searched,) = chosen(status, 2, shows=lambda line: True)
    assert searched.tail is None, "who searches wants all that there is"
    rank_0 = [Query(Wanted(frozenset({0})))]
    assert chosen({**status, "state": "Running"}, 2) == chosen({"state": "Failed"}, 2) == rank_0


def test_who_follows_sees_no_line_of_rank_0_twice() -> None:
    failure = {"attempt": 1, "rank": 0, "pod": "digits-1-0", "time": "2026-01-01T00:00:00Z"}
    status: dict[str, Any] = {"state": "Restarting", "attempt": 1, "failure": failure}
    rank_0 = Wanted(frozenset({0}))
    (query,) = chosen(status, 1, follow=True)  # in place
    assert (query.wanted, query.tail, query.since, query.follow) == (rank_0, 50, None, True)
    status["attempt"] = 2  # another pod
    old, new = chosen(status, 1, follow=True)
    assert old.wanted == Wanted(frozenset({0}), attempt=1) and not old.follow
    assert (new.wanted, new.tail, new.since, new.follow) == (rank_0, None, 1767225600, True)


def test_a_pod_whose_process_is_not_known_is_shown_as_a_whole() -> None:
    older = {"attempt": 0, "rank": 3, "pod": "digits-0-3"}
    for failure in ({"attempt": 0, "pod": "digits-0-3"}, older):
        (query,) = chosen({"state": "Failed", "failure": failure}, 2)
        assert query.wanted == Wanted(nodes=frozenset({3}), attempt=0)
        assert query.why == "the last lines of node 3, which failed first in attempt 0"


def test_a_pod_has_in_each_line_the_rank_that_it_had() -> None:
    named = Pod("digits-0-2", "u", 0, 2, "gpu-1", "running", "")
    table = {"attempt": 0, "spares": [], "moved": [{"rank": 0, "of": 2, "round": 0}]}
    now = with_rank(named, {"status": {"pods": [table]}})
    assert (now.node_rank, now.moved) == (0, True)
    maker = LineMaker(named, 2, from_the_beginning=True)
    texts = (b"[rank 5] a", b"ddpjob-agent: this pod gets node rank 0", b"[rank 1] b")
    lines = [maker.line(text) for text in texts]
    assert [(each.node_rank, each.rank) for each in lines] == [(2, 5), (0, None), (0, 1)]
    for rank in (0, 5):
        assert Wanted(frozenset([rank])).has_pod(now, 2, 0)
    assert not Wanted(frozenset([4])).has_pod(named, 1, 0)
