"""Benchmarks measure what they say: the bare client's bytes, the audit log's counts, medians."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from benchmarks import bare, report
from benchmarks.report import Pair
from benchmarks.trial import Scenario, Trial
from benchmarks.writes import Writes
from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, Resource
from ddpjob.cluster.local import LocalCluster
from ddpjob.controller.controller import Controller, load_agent
from ddpjob.json_depth import Body
from tests.builders import NOW, job_object
from tests.localplay import FAST, NAMESPACE, admit, until

SCENARIO = Scenario("2 jobs × 4 pods", jobs=2, nnodes=4)


class Recorded(LocalCluster):
    """Keeps the bytes of every write, times and durations blotted out."""

    def __init__(self) -> None:
        super().__init__(admit=admit)
        self.sent: list[tuple[str, bytes]] = []

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
        self.sent.append(("POST", blot(body)))
        return await super().create(resource, namespace, body)

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        self.sent.append(("PUT", blot(body)))
        return await super().update_status(resource, namespace, body)


def blot(body: Any) -> bytes:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    text = re.sub(rb'"queuedSeconds":\d+', b'"queuedSeconds":N', text)
    text = re.sub(rb'"token":"[^"]+"', b'"token":"T"', text)
    return re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"TIME", text)


async def test_the_bare_client_sends_what_the_operator_sends() -> None:
    cluster = Recorded()
    job = DDPJob.parse(await cluster.create(DDPJOBS, NAMESPACE, job_object(nnodes=4)))
    cluster.sent.clear()
    controller = Controller(cluster, settings=FAST)
    controller.reconciler.children.key = b""  # as the bare client's
    run = asyncio.create_task(controller.run())
    wanted = [(method, blot(body)) for method, _, body in bare.requests(job, load_agent(), NOW)]
    await until(lambda: len(cluster.sent) >= len(wanted))
    run.cancel()
    await asyncio.wait([run])
    assert cluster.sent[: len(wanted)] == wanted


def event(verb: str, resource: str, second: float, code: int = 201, sub: str = "") -> str:
    target = {"resource": resource} | ({"subresource": sub} if sub else {})
    answer = {"code": code}
    time = f"2026-01-31T12:00:{second:09.6f}Z"
    return json.dumps(
        {"verb": verb, "objectRef": target, "responseStatus": answer, "stageTimestamp": time}
    )


def test_the_audit_log_gives_counts_refusals_and_times(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    writes = Writes(log)
    assert writes.read() == 0
    half = event("create", "pods", 4.5)
    log.write_text(
        "\n".join(
            [
                event("create", "pods", 2.0),
                event("update", "ddpjobs", 2.1, 200, sub="status"),
                event("create", "pods", 9.0, 403),
                half[:20],
            ]
        )
    )
    assert writes.read() == 3
    with log.open("a") as more:
        more.write(half[20:] + "\n")
    assert writes.read() == 4
    assert writes.counts == {("create", "pods"): 2, ("update", "ddpjobs/status"): 1}
    assert writes.refused == {("create", "pods", 403): 1}
    assert writes.creation_seconds == 2.5


def trial(seconds: float, **writes: int) -> Trial:
    counts = Counter({("create", name): count for name, count in writes.items()})
    return Trial(seconds=seconds, pods=8, cpu=1.0, server_cpu=2.0, writes=counts, refused=Counter())


def test_ratios_are_of_neighbours_and_rows_show_every_trial() -> None:
    pairs = [
        Pair(bare=trial(1.0), operator=trial(2.0)),
        Pair(bare=trial(2.0), operator=trial(2.0)),
        Pair(bare=trial(2.0), operator=trial(4.0)),
    ]
    row = report.creation_row(SCENARIO, pairs)
    assert row[1:] == ["**4** (8, 4, 4)", "**4** (4, 4, 2)", "**0.50** (0.50, 1.00, 0.50)"]


def test_writes_per_job_are_means_and_leave_events_out_of_the_total() -> None:
    pairs = [Pair(bare=trial(1.0), operator=trial(1.0, pods=8, services=2, events=3))]
    assert report.writes_row(SCENARIO, pairs)[1:] == [
        "5",
        "create events 1.50, create pods 4, create services 1",
    ]
