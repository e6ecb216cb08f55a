"""What happens to a job, on a real API server with the operator as a process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS, NETWORK_POLICIES, PODS, SERVICES, Resource
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs
from tests.builders import summary
from tests.cluster.kubelet import Played, ScriptedKubelet
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End
from tests.localplay import until

CHILDREN = (PODS, SERVICES, CONFIGMAPS, NETWORK_POLICIES)
pytestmark = pytest.mark.usefixtures("kubelet")


@pytest.fixture
async def kubelet(operator: OperatorProcess, played: Played) -> AsyncIterator[ScriptedKubelet]:
    """Plays the pods, which run until they are ended or deleted."""
    async with played() as kubelet:
        yield kubelet


async def in_state(jobs: Jobs, state: str, *, attempt: int = 0) -> Body:
    """The job once it is in this state of this attempt."""

    def holds(job: Body) -> bool:
        status = job.get("status") or {}
        return (status.get("state"), status.get("attempt")) == (state, attempt)

    return await jobs.until(holds)


async def gone(jobs: Jobs, *resources: Resource) -> None:
    """Until nothing is left of these kinds."""

    async def look() -> bool:
        return not [found for kind in resources for found in await jobs.children(kind)]

    await until(look, every=0.02)


async def told(jobs: Jobs, *reasons: str) -> None:
    """Until the job has as many Events, which must be of these reasons and no others."""

    async def look() -> list[str] | None:
        found = sorted(event["reason"] for event in await jobs.events())
        return found if len(found) >= len(reasons) else None

    assert await until(look, every=0.02) == sorted(reasons)


async def test_a_failed_job_says_who_failed_first_and_where_in_its_script(
    jobs: Jobs, kubelet: ScriptedKubelet
) -> None:
    frames = "".join(f'  File "train.py", line {n}, in step\n    step()\n' for n in range(70))
    trace = f"Traceback (most recent call last):\n{frames}ValueError: boom"
    words = summary(rank=1, exception="ValueError", traceback=trace)
    policy = {"maxRestarts": 1, "backoffSeconds": {"first": 0, "cap": 0}}
    await jobs.create(nnodes=2, failurePolicy={**policy, "restartStrategy": "Recreate"})
    for attempt in (0, 1):
        await in_state(jobs, "Running", attempt=attempt)
        kubelet.finish(jobs.namespace, f"digits-{attempt}-1", End(exit_code=1, message=words))
    status = (await in_state(jobs, "Failed", attempt=1))["status"]
    columns, failure = status["summary"], status["failure"]
    where = f"digits-1-1 on {failure['node']}"
    why = f"MaxRestartsExceeded: Exception r1 ({where}): ValueError: boom"
    assert columns["reason"] == why
    assert (columns["pod"], columns["node"]) == ("digits-1-1", failure["node"])
    assert columns["attempt"] == "1.0"
    assert failure["traceback"].startswith("…\n") and len(failure["traceback"]) <= 2048
    assert failure["traceback"].endswith("    step()\nValueError: boom")
    assert [entry["message"] for entry in status["history"]] == ["ValueError: boom"] * 2
    assert {(e["exitCode"], e["exception"]) for e in status["history"]} == {(1, "ValueError")}
    await told(jobs, "Started", "Restarting", "Started", "Failed")


async def test_a_job_tells_that_it_starts_is_suspended_and_is_resumed(jobs: Jobs) -> None:
    await jobs.create(nnodes=2)
    running = await in_state(jobs, "Running")
    assert "reason" not in running["status"]["summary"]
    assert running["status"]["summary"]["pod"] == "digits-0-0"
    await jobs.patch(suspend=True)
    await in_state(jobs, "Suspended", attempt=1)
    await jobs.patch(suspend=False)
    await in_state(jobs, "Running", attempt=1)
    await told(jobs, "Started", "Suspending", "Resumed", "Started")


async def test_a_suspended_job_has_no_pods_and_resumes_as_it_was_edited(jobs: Jobs) -> None:
    await jobs.create(nnodes=3)
    await in_state(jobs, "Running")
    await jobs.patch(suspend=True)
    await in_state(jobs, "Suspended", attempt=1)
    await gone(jobs, PODS)
    await jobs.patch(suspend=False, nnodes=4)
    job = await in_state(jobs, "Running", attempt=1)
    assert await jobs.pods() == [f"digits-1-{rank}" for rank in range(4)]
    assert job["status"]["restarts"] == 0


async def test_a_deleted_job_frees_its_name_at_once_and_leaves_nothing(jobs: Jobs) -> None:
    await jobs.create(nnodes=3)
    await in_state(jobs, "Running")
    await jobs.delete()
    again = await jobs.create(nnodes=3)
    await in_state(jobs, "Running")
    uids = [pod["metadata"]["labels"][names.JOB_UID_LABEL] for pod in await jobs.children(PODS)]
    assert uids == [again["metadata"]["uid"]] * 3
    await jobs.delete()
    await gone(jobs, *CHILDREN)


async def test_a_network_policy_that_was_edited_while_suspended_is_replaced(jobs: Jobs) -> None:
    async def policies() -> list[tuple[str, list[str]]]:
        found = await jobs.children(NETWORK_POLICIES)
        return [(policy["metadata"]["uid"], policy["spec"]["policyTypes"]) for policy in found]

    async def resumed(attempt: int, **spec: Any) -> list[tuple[str, list[str]]]:
        await jobs.patch(suspend=True)
        await in_state(jobs, "Suspended", attempt=attempt)
        await jobs.patch(suspend=False, **spec)
        await in_state(jobs, "Running", attempt=attempt)
        return await policies()

    await jobs.create(nnodes=3)
    await in_state(jobs, "Running")
    (first,) = await policies()
    assert first[1] == ["Ingress"]
    assert await resumed(1, args=["other.py"]) == [first], "it was wanted as it was"
    (second,) = await resumed(2, networkPolicy={"egress": []})
    assert second[0] != first[0] and second[1] == ["Ingress", "Egress"]
    assert await resumed(3, networkPolicy={"enabled": False, "egress": None}) == []
    (last,) = await resumed(4, networkPolicy={"enabled": True})
    assert last[1] == ["Ingress"]
