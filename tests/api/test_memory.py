"""How much memory the operator takes, whatever tenants store: its peak, by the kernel's count."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import Jobs
from tests.api.large import large_job, large_pod
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.localplay import until

pytestmark = pytest.mark.deep

LARGE = 60  # objects of each kind
LIMIT_MIB = 200  # of which two such attacks together may take no more; the chart's limit is above


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What is measured has imported nothing but its own."""


async def store(client: Client, path: str, bodies: list[Any]) -> None:
    slots = asyncio.Semaphore(4)

    async def post(body: Any) -> None:
        async with slots:
            await client.request("POST", path, body)

    await asyncio.gather(*map(post, bodies))


def peak_mib(operator: OperatorProcess) -> float:
    """The process's highest resident size so far, in MiB."""
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


async def test_a_job_that_leaves_no_room_for_a_status_is_told_by_an_event(
    api_server: ApiServer,
    crd: None,
    tmp_path: Path,
    jobs: Jobs,
) -> None:
    """Of exactly the size that etcd still takes."""
    fits, too_large = 1_400_000, 1_600_000
    while too_large - fits > 16:
        size = (fits + too_large) // 2
        args = ["train.py", *["x" * 32_000] * (size // 32_000), "x" * (size % 32_000)]
        try:
            await jobs.create("large", args=args, suspend=True)
            fits = size
            await jobs.delete("large")
        except ApiError:
            too_large = size
    args = ["train.py", *["x" * 32_000] * (fits // 32_000), "x" * (fits % 32_000)]
    await jobs.create("large", args=args, suspend=True)
    with OperatorProcess(api_server, tmp_path) as operator:
        operator.wait_until_ready()
        events = await until(jobs.events, every=0.1)
        assert [event["reason"] for event in events] == ["Invalid"]
        assert "must be at most 65536 bytes" in events[0]["message"]
        assert "status" not in await jobs.get("large")


async def test_large_objects_of_tenants_fill_no_memory_and_hold_up_nobody(
    api_server: ApiServer,
    crd: None,
    tmp_path: Path,
    jobs: Jobs,
    played: Played,
    client: Client,
    namespace: str,
) -> None:
    peaks: dict[str, float] = {}
    with OperatorProcess(api_server, tmp_path) as operator:
        operator.wait_until_ready()
        peaks["idle"] = peak_mib(operator)
        await store(client, jobs.path, [large_job(n) for n in range(LARGE)])
        path = f"/api/v1/namespaces/{namespace}/pods"
        await store(client, path, [large_pod(n) for n in range(LARGE)])
        async with played():
            await jobs.create()
            await jobs.in_state("Running")
            peaks["as they came"] = peak_mib(operator)
            operator.kill()
            operator.start()
            operator.wait_until_ready()
            await jobs.create("second")
            await jobs.in_state("Running", "second")
            peaks["at the next start"] = peak_mib(operator)
    for large in (path, jobs.path):  # other tests share the API server
        await client.request("DELETE", large, {"gracePeriodSeconds": 0})
    print(", ".join(f"{name}: {peak:.0f} MiB" for name, peak in peaks.items()))
    assert max(peaks.values()) <= LIMIT_MIB, peaks
