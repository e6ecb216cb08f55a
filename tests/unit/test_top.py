"""The lines and cells of `ddpjob top`."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpjob.cli.top import bar, head, rates, row
from ddpjob.client.agents import Answer, NodeProgress, read_progress
from ddpjob.client.job import Job
from ddpjob.cluster.logs import Pod
from tests.builders import job_object

POD = Pod("digits-0-1", "u", 0, 1, "gpu-17", "running", "")
DATE = "Tue, 24 Nov 2026 20:00:10 GMT"


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("1840/20000", "[#...................] 1840/20000 9%"),
        ("50/50", "[####################] 50/50 100%"),
        ("12", "step 12"),
        ("1/0", "step 1/0"),
    ],
)
def test_steps_are_a_bar_where_the_total_is_known(step: str, shown: str) -> None:
    assert bar(step) == shown


def job(**status: Any) -> Job:
    body = job_object("digits")
    return Job(None, {**body, "status": {"state": "Running", **status}})  # type: ignore[arg-type]


def test_the_head_has_what_is_known() -> None:
    assert head(job(), []) == ["digits  Running"]
    summary = {"nodes": "2/2", "step": "10/100", "eta": "2h4m", "loss": "3.021"}
    full = job(
        summary=summary,
        goodput={"startingSeconds": 3, "productiveSeconds": 97},
    )
    node = NodeProgress(POD, samples_per_second=412.0)
    assert head(full, [node]) == [
        "digits  Running 2/2  [##..................] 10/100 10%  eta 2h4m  useful 97%",
        "loss 3.021  412 samples/s",
    ]


def answer(content: Any, date: str = DATE) -> Answer:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Answer(POD, text, date)


def test_the_progress_of_a_node() -> None:
    page = {"state": "running", "step": 7, "loss": 0.5, "updated_at": 1795550400.0}
    node = read_progress(answer(page))
    assert (node.state, node.step, node.loss, node.idle_seconds) == ("running", 7, 0.5, 10.0)
    assert row(node, 2.5) == ("1", "digits-0-1", "gpu-17", "7", "2.5", "10s", "0.5")
    assert row(NodeProgress(POD), None) == ("1", "digits-0-1", "gpu-17", *["-"] * 4)
    problem = read_progress(Answer(POD, problem="its container is ended"))
    assert row(problem, None)[3] == "its container is ended"


def test_rates_are_of_the_same_pods_at_both_looks() -> None:
    def look(**steps: int | None) -> list[NodeProgress]:
        return [NodeProgress(replace(POD, uid=uid), step=step) for uid, step in steps.items()]

    before = look(a=10, b=10, again=90, none=None, gone=1)
    now = look(a=13, b=10, again=2, none=5, new=7)
    assert rates(before, now, 2.0) == {"a": 1.5, "b": 0.0}
    assert rates([], now, 1e9) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        {"state": "\x1b[31m" * 100, "step": True, "loss": "x"},
    ],
)
def test_what_a_pod_sends_instead_is_nothing_or_printable(content: Any) -> None:
    node = read_progress(answer(content))
    assert (node.step, node.loss, node.samples_per_second, node.idle_seconds) == (None,) * 4
    assert all(cell.isprintable() for cell in row(node, None)) and len(node.state) <= 32
    assert read_progress(answer({"updated_at": 1.0}, "no date")).idle_seconds is None
