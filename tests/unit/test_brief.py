"""Of thousands of jobs little is kept, and nothing that a table shows is lost."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, TypeVar

import pytest

from ddpjob import names
from ddpjob.cli.get import ORDERS, STATES, row
from ddpjob.client.answers import read_list
from ddpjob.client.brief import brief
from ddpjob.client.client import is_selected
from ddpjob.client.html import live, table
from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import Unavailable
from tests.builders import job_object
from tests.fuzz import fuzzed_status

T = TypeVar("T")
NOW = 1_800_000_000.0
KIB = 1024


def large(values: int = 50_000) -> Any:
    """A job of much JSON that is far more as Python's objects."""
    body = job_object("large", template={"spec": {"x": [{"": 0}] * values}})
    text = json.dumps({**body, "status": fuzzed_status(3)})
    return json.loads(text)  # each of them is an object of its own


def takes(make: Callable[[], T]) -> tuple[T, int, int]:
    """What is made, the bytes that it keeps, and those that it needs meanwhile."""
    tracemalloc.start()
    try:
        made = make()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return made, kept, peak


class Answer:
    """The answer to a list, as urllib3 has it."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.sent = parts, 0

    def stream(self, size: int) -> Any:
        for part in self.parts:
            for start in range(0, len(part), size):
                self.sent += len(part[start : start + size])
                yield part[start : start + size]


@pytest.mark.parametrize("number", range(200))
def test_tables_show_the_same_of_a_job_in_brief(number: int) -> None:
    limits: Any = ({"nvidia.com/gpu": 8, "cpu": "4"}, {"amd.com/gpu": "2"}, {}, None)[number % 4]
    body = job_object("digits", image=f"image:{number}", resources={"limits": limits}, nnodes=2)
    metadata = {"annotations": {names.USER_ANNOTATION: "ana", "other": "x" * 9999}, "uid": "u"}
    body["metadata"] |= {**metadata, "creationTimestamp": "2026-11-24T20:00:00Z"}
    body["spec"] |= {"nprocPerNode": 3} if number % 3 else {}
    body["status"] = fuzzed_status(number)
    whole = Job(None, deepcopy(body))  # type: ignore[arg-type]
    listed = Job(None, deepcopy(body), is_listed=True)  # type: ignore[arg-type]
    short = Job(None, brief(deepcopy(body)))  # type: ignore[arg-type]
    for one in (listed, short):
        for options in ({}, {"wide": True, "namespaces": True}):
            assert row(one, NOW, **options) == row(whole, NOW, **options)
        assert table([one], NOW) == table([whole], NOW)
        assert [order(one) for order in ORDERS.values()] == [
            order(whole) for order in ORDERS.values()
        ]
        for name in ("gpus_per_node", "processes_per_node", "message", "reason", "step", "user"):
            assert getattr(one, name) == getattr(whole, name), name
        assert one.to_record() == whole.to_record()
        assert is_selected(one, whole.state, "ana") and not is_selected(one, None, "eva")
    assert listed.body == whole.body and listed.curve() == whole.curve()
    assert live(listed, []) == live(whole, [])
    assert listed.status == whole.status and listed.failure == whole.failure


def told(body: Any) -> tuple[Any, ...]:
    """All that tables and selections have of a job."""
    job = Job(None, body)  # type: ignore[arg-type]
    rows = row(job, NOW), row(job, NOW, wide=True, namespaces=True)
    rest = job.to_record(), job.processes_per_node, job.gpus_per_node, job.message, job.user
    return *rows, table([job], NOW), *(order(job) for order in ORDERS.values()), *rest


def changed(value: Any) -> Iterator[Any]:
    """The same value with one text or number in it changed, each in its turn."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for other in changed(value[key]):
                copy = value.copy()
                copy[key] = other
                yield copy
    elif isinstance(value, str):
        yield value.replace("T20:", "T21:") if "T20:" in value else f"{value}1"
    else:
        yield value + 1


@pytest.mark.parametrize("state", [*STATES, "Other"])
@pytest.mark.parametrize("truth", ["True", "False"])
@pytest.mark.parametrize("summary", [True, False])
def test_whatever_a_table_has_of_a_job_is_kept(state: str, truth: str, summary: bool) -> None:
    times = [f"2026-11-24T20:{n:02}:00Z" for n in range(9)]
    kinds = ("Accepted", "Running", "Failed", "Complete", "Suspended", "Stalled")
    conditions = [
        {
            **{"type": kind, "status": "True" if kind == "Accepted" else truth, "reason": "Waits"},
            **{"message": f"m{n}", "lastTransitionTime": times[n]},
        }
        for n, kind in enumerate(kinds)
    ]
    place = {"attempt": 1, "round": 1, "rank": 3, "pod": "digits-1-1", "node": "gpu-1"}
    failure = {**place, "reason": "Waits", "message": "boom", "exitCode": 3, "signal": "SIGABRT"}
    body = job_object("digits", nnodes=2, nprocPerNode=2, resources={"limits": {"amd.com/gpu": 2}})
    body["metadata"] |= {"uid": "u", "creationTimestamp": times[0], "namespace": "team"}
    body["metadata"]["annotations"] = {names.USER_ANNOTATION: "ana"}
    body["status"] = {
        **{"state": state, "attempt": 1, "round": 1, "restarts": 2, "worldSize": 4},
        **{"conditions": conditions, "failure": failure, "nodes": {"desired": 2, "running": 1}},
        "history": [{**failure, "endTime": times[6]}, {**failure, "endTime": times[7]}],
        "goodput": {"ratio": "0.500", "since": times[8]},
        "progress": {"attempt": 1, "round": 1, "step": 7, "percent": 10},
    }
    if summary:
        texts = {"nodes": "1/2", "step": "7/70", "loss": "0.5", "eta": "3s", "attempt": "1.1"}
        body["status"]["summary"] = {**texts, "reason": "Waits: m", "pod": "p", "node": "n"}
    for other in (body, *changed(body)):
        assert told(brief(other)) == told(other)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"status": {"history": [1], "goodput": []}},
        {"metadata": None, "spec": [], "status": "x"},
        {"metadata": {"name": {}, "annotations": []}, "status": {"conditions": {"type": "x"}}},
        {"spec": {"resources": {"limits": [1]}}, "status": {"conditions": [None, {"type": []}]}},
        {"spec": {"resources": {"limits": {"amd.com/gpu": {}}}}},
    ],
)
def test_an_object_of_any_shape_is_read(body: Any) -> None:
    assert row(Job(None, brief(body)), NOW)  # type: ignore[arg-type]


def test_a_job_in_brief_is_small_whatever_it_has() -> None:
    body = large()
    hostile = {f"nvidia.com/mig-{n}": "x" * 9999 for n in range(5000)}
    body["spec"] |= {"image": "x" * 10**6, "resources": {"limits": hostile}}
    condition = {"type": "Running", "status": "x" * 10**6, "y": [{}] * 10_000}
    body["status"]["conditions"] = [dict(condition) for _ in range(1000)]
    body["metadata"]["ownerReferences"] = [{"uid": str(n)} for n in range(10_000)]
    short, kept, _ = takes(lambda: brief(body))
    assert kept < 64 * KIB and len(json.dumps(short)) < 64 * KIB


def test_a_listed_job_keeps_no_more_than_its_text() -> None:
    body = large()
    text = json.dumps(body)
    jobs, kept, _ = takes(lambda: [Snapshot(deepcopy(body), is_listed=True) for _ in range(5)])
    assert kept < 5 * 32 * KIB < len(text)
    assert jobs[0].body == body
    jobs[1].body = {"metadata": {"name": "other"}}
    assert jobs[1].name == "other" and jobs[1].body == {"metadata": {"name": "other"}}


@pytest.mark.deep
def test_a_list_needs_room_for_one_object() -> None:
    item = json.dumps(large(20_000)).encode()
    _, _, alone = takes(lambda: json.loads(item))
    answer = Answer(b'{"items": [', *[item + b","] * 29, item, b'], "metadata": {}}', b" " * 2**18)
    page, kept, peak = takes(lambda: read_list(answer, "LIST x", brief))
    assert len(page.items) == page.count == 30 and page.items[7]["metadata"]["name"] == "large"
    assert page.size == answer.sent == sum(map(len, answer.parts)), "read to its end"
    assert kept < 30 * 32 * KIB and peak < 3 * alone + kept


def test_what_is_not_kept_is_counted() -> None:
    answer = Answer(b'{"items": [{"a": 1}, {"a": 2}], "metadata": {"continue": "x"}}')
    page = read_list(answer, "LIST x", lambda body: None if body["a"] == 1 else body["a"])
    assert (page.items, page.count, page.metadata) == ([2], 2, {"continue": "x"})
    whole = read_list(answer, "LIST x", None)
    assert whole.items == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"items": [1], "metadata": {}}', b'{"items": []}', b'{"metadata": {}}', b"{"],
)
def test_what_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(Unavailable, match="the answer is no"):
        read_list(Answer(text), "LIST x", None)


def test_an_endless_list_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob.client.answers.MAX_BYTES", 10**6)
    answer = Answer(b'{"items": [', *[b'{"a": "' + b"x" * 10_000 + b'"},'] * 10_000)
    with pytest.raises(Unavailable, match="more than 1000000 bytes"):
        read_list(answer, "LIST x", brief)
    assert answer.sent < 2 * 10**6
