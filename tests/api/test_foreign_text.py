"""What users and pods write cannot be a line of the operator's log, nor move whoever reads it."""

import asyncio
import re
from pathlib import Path

from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions
from tests.builders import summary
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End, Life

FORGED = "2027-01-15 08:00:00,000 INFO ddpjob.lease released"
HOSTILE = f"x\n{FORGED}\x1b[2J\r\u202e\u200b\u2028y"
QUOTED = r"\x1b[2J\r\u202e\u200b\u2028y"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+ ")


def fails(pod: Body) -> Life:
    words = summary(
        message=f"ValueError: {HOSTILE}",
        exception=HOSTILE,
        reason=HOSTILE[:60],
        traceback=f"Traceback (most recent call last):\n{HOSTILE}",
    )
    return Life(run_seconds=0.2, end=End(exit_code=1, message=words))


async def test_no_text_of_others_reaches_log_status_or_events_as_it_is(
    api_server: ApiServer,
    crd: None,
    jobs: Jobs,
    played: Played,
    client: Client,
    namespace: str,
    tmp_path: Path,
) -> None:
    overlays: dict[str, Body] = {
        "key": {HOSTILE: 1},
        "directive": {"spec": {HOSTILE: {"$patch": "delete"}}},
        "volume": {"spec": {"volumes": [{"name": HOSTILE, "hostPath": {"path": "/"}}]}},
        "label": {"metadata": {"labels": {f"ddpjob.dev/{HOSTILE}": "x"}}},
        "field": {"spec": {"nodeSelector": {HOSTILE: HOSTILE}}},  # the API server quotes it
    }
    with OperatorProcess(api_server, tmp_path, "--namespace", namespace) as operator:
        await asyncio.to_thread(operator.wait_until_ready)
        async with played(fails):
            for name, template in overlays.items():
                await jobs.create(name, template=template)
            await jobs.create("dies", failurePolicy={"maxRestarts": 0})
            told = [await jobs.in_state("Failed", "dies")]
            for name in overlays:
                told.append(await jobs.until(lambda job: "refused" in reasons(job), name))
            said = await events(client, namespace, len(told))
    for job in told:
        assert any(QUOTED in c["message"] for c in job["status"]["conditions"]), job["status"]
    failure = told[0]["status"]["failure"]
    assert QUOTED in failure["message"] and QUOTED in failure["exception"]
    assert QUOTED in failure["traceback"] and "\n" in failure["traceback"]
    shown = [c["message"] for job in told for c in job["status"]["conditions"]]
    shown += [*said, *failure.pop("traceback").split("\n")]
    columns = [job["status"]["summary"] for job in told]
    parts: list[Body] = [failure, *columns, *told[0]["status"]["history"]]
    shown += [str(value) for part in parts for value in part.values()]
    assert all(column["reason"] for column in columns)
    assert all(text.isprintable() for text in shown)
    lines = operator.log.read_text().split("\n")
    assert any(r"\x1b[2J" in line for line in lines)
    assert all(line.isprintable() and not line.startswith(FORGED) for line in lines)
    assert all(RECORD.match(line) or line.startswith("  ") or not line for line in lines), lines


async def events(client: Client, namespace: str, count: int) -> list[str]:
    """The messages of the operator's Events, once so many of them quote the hostile text."""
    async with asyncio.timeout(200):
        while True:
            found = (await client.request("GET", f"/api/v1/namespaces/{namespace}/events"))["items"]
            ours = [e["message"] for e in found if e["source"] == {"component": "ddpjob"}]
            if sum(QUOTED in message for message in ours) >= count:
                return ours
            await asyncio.sleep(0.1)


def reasons(job: Body) -> set[str]:
    """`refused` where the job says that it was."""
    found = {reason for _, reason in conditions(job).values()}
    return {"refused"} if found & {"Invalid", "CreateRefused"} else set()
