"""What a table of jobs says while pods wait: a real scheduler's words."""

from ddpjob.json_depth import Body
from tests.api.jobs import Jobs
from tests.cluster.operator import OperatorProcess
from tests.localplay import until

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def test_a_job_without_room_has_the_schedulers_words_and_one_event(
    operator: OperatorProcess, jobs: Jobs, nodes: list[str]
) -> None:
    await jobs.create("wide", nnodes=3, resources={"requests": {"cpu": "999k"}})

    async def row() -> Body | None:
        """The job's row by the names of its columns, once it has a reason."""
        table = await jobs.client.request("GET", f"{jobs.path}/wide", accept=TABLE)
        titles = [column["name"] for column in table["columnDefinitions"]]
        found = dict(zip(titles, table["rows"][0]["cells"], strict=True))
        return found if found["Reason"] else None

    found = await until(row, every=0.05)
    assert found["Reason"].startswith("Unschedulable: 0/2 nodes are available: 2 Insufficient cpu")
    assert len(found["Reason"]) <= 128 and found["State"] == "Starting"
    assert found["Attempt"] == "0.0" and found["Pod"].startswith("wide-0-")
    assert found["Image"] == "trainer:1"
    events = await until(jobs.events, every=0.05)
    assert [event["reason"] for event in events] == ["Unschedulable"]
