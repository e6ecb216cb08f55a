"""What a namespace's administrator writes into a status: refused, or read; the others go on."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from ddpjob import names
from tests.api.jobs import Jobs
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.operator import OperatorProcess
from tests.fuzz import fuzzed_status

VICTIMS, TURNS = 10, 40
# Each of these stopped the operator, or all looks at the job.
KNOWN = (
    {"succeededRanks": "0-9999999"},
    {"succeededRanks": ",".join(["0-9999"] * 2800)},
    {"nodes": {"desired": 2**53}},
    {"attempt": 2**53},
    {"attempt": 999_999_999},
    {"restarts": 2**53 - 1, "budget": {"charged": 2**53 - 1, "consecutiveRestarts": 2**53 - 1}},
    {"startTime": "2026-01-31T12:00:00+99:99"},
    {"goodput": {"since": "0001-01-01T00:00:00+14:00"}},
    {"progress": {"step": 1, "loss": "abc"}},
    {"succeededRanks": "one"},
)


async def write(client: Client, jobs: Jobs, name: str, status: object) -> str:
    """Into the job's status; what became of it."""
    path = f"{jobs.path}/{name}/status"
    try:
        await client.request("PATCH", path, {"status": status}, content_type=MERGE)
        return "taken"
    except ApiError as error:
        if error.code not in (400, 422):
            raise
        return "refused"


async def seconds_to_pods(client: Client, jobs: Jobs, name: str) -> float:
    """From a new job's creation until its pods are there."""
    begin = time.monotonic()
    await jobs.create(name)
    path = f"/api/v1/namespaces/{jobs.namespace}/pods?labelSelector={names.JOB_LABEL}={name}"
    async with asyncio.timeout(200):
        while len((await client.request("GET", path))["items"]) < 2:
            await asyncio.sleep(0.02)
    return time.monotonic() - begin


@pytest.mark.deep
async def test_odd_statuses_stop_nothing(
    api_server: ApiServer, crd: None, client: Client, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    with OperatorProcess(api_server, tmp_path, "--namespace", namespace) as operator:
        await asyncio.to_thread(operator.wait_until_ready)
        names = [f"victim-{number}" for number in range(VICTIMS)]
        for name in names:
            await jobs.create(name)
        await asyncio.gather(*(jobs.in_state("Starting", name) for name in names))
        before = await seconds_to_pods(client, jobs, "before")
        seen: Counter[str] = Counter()
        for known in KNOWN:
            seen[await write(client, jobs, names[0], known)] += 1
        during = [await seconds_to_pods(client, jobs, "during-0")]
        for turn in range(TURNS):
            odd = (fuzzed_status(turn * VICTIMS + number) for number in range(VICTIMS))
            wrote = (write(client, jobs, *pair) for pair in zip(names, odd, strict=True))
            seen.update(await asyncio.gather(*wrote))
            if turn % 10 == 9:
                during.append(await seconds_to_pods(client, jobs, f"during-{turn}"))
        print(f"{dict(seen)}; pods after {before:.2f} s, meanwhile {max(during):.2f} s")
        assert min(seen["taken"], seen["refused"]) > VICTIMS
        # Each victim is still looked at: it obeys, unless a status said that it had finished.
        for name in names:
            await jobs.patch(name, suspend=True)
        ends = ("Suspended", "Succeeded", "Failed")
        for name in names:
            await jobs.until(lambda job: job.get("status", {}).get("state") in ends, name)
        log = operator.log.read_text()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        assert " 422 " not in log, "a status of the operator's own was refused"
