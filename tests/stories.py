"""What happens to a job, told once for every stage: tests/unit and tests/api tell each of these."""

from collections.abc import Awaitable, Callable

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS, NETWORK_POLICIES, PODS, SERVICES, Resource
from ddpjob.json_depth import Body
from tests.builders import summary
from tests.localplay import until
from tests.stage import Stage

CHILDREN = (PODS, SERVICES, CONFIGMAPS, NETWORK_POLICIES)


async def in_state(stage: Stage, state: str, *, attempt: int = 0) -> Body:
    """The job once it is in this state of this attempt."""

    def holds(job: Body) -> bool:
        status = job.get("status") or {}
        return (status.get("state"), status.get("attempt")) == (state, attempt)

    return await stage.until(holds)


async def pod_names(stage: Stage) -> list[str]:
    """The job's pods."""
    return sorted(pod["metadata"]["name"] for pod in await stage.children(PODS))


async def gone(stage: Stage, *resources: Resource) -> None:
    """Until nothing is left of these kinds."""

    async def look() -> bool:
        return not [found for kind in resources for found in await stage.children(kind)]

    await until(look, seconds=90, every=0.02)


async def told(stage: Stage, *reasons: str) -> None:
    """Until the job has as many Events, which must be of these reasons and no others."""

    async def look() -> list[str] | None:
        found = sorted(event["reason"] for event in await stage.events())
        return found if len(found) >= len(reasons) else None

    assert await until(look, seconds=60, every=0.02) == sorted(reasons)


async def a_failed_job_says_who_failed_first_and_where_in_its_script(stage: Stage) -> None:
    frames = "".join(f'  File "train.py", line {n}, in step\n    step()\n' for n in range(70))
    trace = f"Traceback (most recent call last):\n{frames}ValueError: boom"
    words = summary(rank=1, exception="ValueError", traceback=trace)
    policy = {"maxRestarts": 1, "backoffSeconds": {"first": 0, "cap": 0}}
    await stage.create(nnodes=2, failurePolicy=policy)
    for attempt in (0, 1):
        await in_state(stage, "Running", attempt=attempt)
        await stage.end_pod(f"digits-{attempt}-1", 1, words)
    status = (await in_state(stage, "Failed", attempt=1))["status"]
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
    await told(stage, "Started", "Restarting", "Started", "Failed")


async def a_job_tells_that_it_starts_is_suspended_and_is_resumed(stage: Stage) -> None:
    await stage.create(nnodes=2)
    running = await in_state(stage, "Running")
    assert "reason" not in running["status"]["summary"]
    assert running["status"]["summary"]["pod"] == "digits-0-0"
    await stage.patch(suspend=True)
    await in_state(stage, "Suspended", attempt=1)
    await stage.patch(suspend=False)
    await in_state(stage, "Running", attempt=1)
    await told(stage, "Started", "Suspending", "Resumed", "Started")


async def a_suspended_job_has_no_pods_and_resumes_as_it_was_edited(stage: Stage) -> None:
    await stage.create(nnodes=3)
    await in_state(stage, "Running")
    await stage.patch(suspend=True)
    await in_state(stage, "Suspended", attempt=1)
    await gone(stage, PODS)
    await stage.patch(suspend=False, nnodes=4)
    job = await in_state(stage, "Running", attempt=1)
    assert await pod_names(stage) == [f"digits-1-{rank}" for rank in range(4)]
    assert job["status"]["restarts"] == 0


async def a_deleted_job_frees_its_name_at_once_and_leaves_nothing(stage: Stage) -> None:
    await stage.create(nnodes=3)
    await in_state(stage, "Running")
    await stage.delete()
    again = await stage.create(nnodes=3)
    await in_state(stage, "Running")
    uids = [pod["metadata"]["labels"][names.JOB_UID_LABEL] for pod in await stage.children(PODS)]
    assert uids == [again["metadata"]["uid"]] * 3
    await stage.delete()
    await gone(stage, *CHILDREN)


async def a_network_policy_that_was_edited_while_suspended_is_replaced(stage: Stage) -> None:
    async def policies() -> list[tuple[str, list[str]]]:
        found = await stage.children(NETWORK_POLICIES)
        return [(policy["metadata"]["uid"], policy["spec"]["policyTypes"]) for policy in found]

    async def resumed(attempt: int, **spec: object) -> list[tuple[str, list[str]]]:
        await stage.patch(suspend=True)
        await in_state(stage, "Suspended", attempt=attempt)
        await stage.patch(suspend=False, **spec)
        await in_state(stage, "Running", attempt=attempt)
        return await policies()

    await stage.create(nnodes=3)
    await in_state(stage, "Running")
    (first,) = await policies()
    assert first[1] == ["Ingress"]
    assert await resumed(1, args=["other.py"]) == [first], "it was wanted as it was"
    (second,) = await resumed(2, networkPolicy={"egress": []})
    assert second[0] != first[0] and second[1] == ["Ingress", "Egress"]
    assert await resumed(3, networkPolicy={"enabled": False, "egress": None}) == []
    (last,) = await resumed(4, networkPolicy={"enabled": True})
    assert last[1] == ["Ingress"]


Story = Callable[[Stage], Awaitable[None]]
STORIES: tuple[Story, ...] = (
    a_failed_job_says_who_failed_first_and_where_in_its_script,
    a_job_tells_that_it_starts_is_suspended_and_is_resumed,
    a_suspended_job_has_no_pods_and_resumes_as_it_was_edited,
    a_deleted_job_frees_its_name_at_once_and_leaves_nothing,
    a_network_policy_that_was_edited_while_suspended_is_replaced,
)
