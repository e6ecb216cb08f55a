"""A job that would cost too much says so in its status, and the others do not notice."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import Jobs, conditions
from tests.cluster.apiserver import ApiServer
from tests.cluster.operator import OperatorProcess

LARGE = [{"onMessagePattern": r"a\pL{441}", "action": "Restart"}] * 32
OVERLAY = {"metadata": {"annotations": {"a": "x" * 900_000}}}
# All of them pass the schema and its rules.
COSTLY: dict[str, tuple[dict[str, Any], str]] = {
    "pattern": (
        {"failurePolicy": {"rules": LARGE}},
        "spec.failurePolicy.rules[0].onMessagePattern: must be smaller: RE2 may make",
    ),
    "spec": (
        {"args": ["train.py", *["x" * 32_000] * 30]},
        "spec: must be at most 65536 bytes as JSON beside template and master.template, is 960",
    ),
    "template": (
        {"template": OVERLAY},
        "spec.template: must be at most 32768 bytes as JSON, is 9000",
    ),
    "master": (
        {"master": {"template": OVERLAY}},
        "spec.master.template: must be at most 32768 bytes as JSON, is 9000",
    ),
}


@pytest.fixture
def operator(
    api_server: ApiServer, crd: None, namespace: str, tmp_path: Path
) -> Iterator[OperatorProcess]:
    with OperatorProcess(api_server, tmp_path, "--namespace", namespace) as operator:
        operator.wait_until_ready()
        yield operator


def accepted(job: dict[str, Any]) -> str:
    found = job.get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in found if c["type"] == "Accepted"), "")


async def test_costly_jobs_are_refused_in_their_status_and_others_run(
    operator: OperatorProcess, jobs: Jobs
) -> None:
    for name, (spec, _) in COSTLY.items():
        await jobs.create(name, **spec)
    await jobs.create("honest")
    await jobs.in_state("Starting", "honest")
    for name, (_, words) in COSTLY.items():
        job = await jobs.until(accepted, name)
        assert conditions(job)["Accepted"] == ("False", "Invalid")
        assert words in accepted(job)
    async with asyncio.timeout(200):
        while len(names := await jobs.pods()) < 2:
            await asyncio.sleep(0.05)
    assert names == ["honest-0-0", "honest-0-1"]
    assert "Traceback" not in operator.log.read_text()
