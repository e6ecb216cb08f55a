"""A job that was stored before a rule existed: it goes on, and only what it breaks is refused."""

import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob.api.crd import crd
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs
from tests.bad_input import definition
from tests.builders import job_object
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import skipping_where_unavailable

pytestmark = pytest.mark.deep(turn=0)  # together, as they share a server

# Each rule of failurePolicy has a name that no failure can have.
RULES: list[Body] = [
    {"onSignals": ["SIGFOO"], "action": "FailJob"},
    {"onReasons": ["OutOfLuck"], "action": "FailJob"},
]
FIELDS = ("rules[0].onSignals[0]", "rules[1].onReasons[0]")


def without_new_rules(schema: Any) -> Any:
    """The definition as it was before `failurePolicy.rules` was held to known names."""
    older = copy.deepcopy(schema)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rule = spec["properties"]["failurePolicy"]["properties"]["rules"]["items"]["properties"]
    for name in ("onSignals", "onReasons"):
        del rule[name]["items"]["enum"]
    return older


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of this module's own, whose definition is replaced by a newer one."""
    with skipping_where_unavailable():
        server = ApiServer(scheduler=False)
    with server:
        yield server


@pytest.fixture(scope="module")
def stored(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The job's namespace; it was stored under the older definition, and the newer one holds."""
    older = tmp_path_factory.mktemp("crd") / "crd.json"
    older.write_text(json.dumps(without_new_rules(crd())))
    server.install_crd(older)
    server.create_namespace("stored")
    job = job_object("old", nnodes=2, failurePolicy={"rules": RULES})
    server.kubectl("create", "-n", "stored", "-f", "-", input=json.dumps(job))
    definition.apply(server)
    return "stored"


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(server) as client:
        yield client


@pytest.fixture
def jobs(client: Client, stored: str) -> Jobs:
    return Jobs(client, stored)


async def refusal(jobs: Jobs, rules: Any) -> str:
    """What the API server says to other rules in the stored job, as a dry run."""
    body = {"spec": {"failurePolicy": {"rules": rules}}}
    path = f"{jobs.path}/old?dryRun=All"
    try:
        await jobs.client.request("PATCH", path, body, content_type=MERGE)
    except ApiError as error:
        assert error.code == 422
        return str(error)
    return ""


async def test_a_new_job_is_refused_by_the_newer_definition(jobs: Jobs) -> None:
    with pytest.raises(ApiError) as refused:
        await jobs.create("new", failurePolicy={"rules": RULES})
    assert all(field in str(refused.value) for field in FIELDS)
    assert "SIGSEGV" in str(refused.value) and "OOMKilled" in str(refused.value)  # the known ones


async def write_status(jobs: Jobs, status: Body | None) -> None:
    path = f"{jobs.path}/old/status"
    await jobs.client.request("PATCH", path, {"status": status}, content_type=MERGE)


async def test_all_but_the_rules_can_be_written(jobs: Jobs) -> None:
    rules = (await jobs.get("old"))["spec"]["failurePolicy"]["rules"]
    for state in ("Starting", "Running"):  # what the operator writes
        await write_status(jobs, {"state": state, "attempt": 0})
    for spec in ({"suspend": True}, {"suspend": False}, {"failurePolicy": {"maxRestarts": 5}}):
        changed = await jobs.patch("old", **spec)
        assert changed["spec"]["failurePolicy"]["rules"] == rules
    await write_status(jobs, None)


async def test_an_edit_of_the_rules_must_mend_them(jobs: Jobs) -> None:
    said = await refusal(jobs, list(reversed(RULES)))
    assert "onSignals[0]" in said and "onReasons[0]" in said
    assert await refusal(jobs, [{"onSignals": ["SIGSEGV"], "action": "FailJob"}]) == ""


async def test_the_operator_runs_it(server: ApiServer, jobs: Jobs, tmp_path: Path) -> None:
    with OperatorProcess(server, tmp_path, "--namespace", jobs.namespace) as operator:
        operator.wait_until_ready()
        job = await jobs.in_state("Starting", "old")
        await jobs.until(lambda job: job["status"].get("nodes", {}).get("pending") == 2, "old")
        assert await jobs.pods() == ["old-0-0", "old-0-1"]
        stored = [{**rule, "avoidNode": False} for rule in RULES]
        assert job["spec"]["failurePolicy"]["rules"] == stored
        assert "Traceback" not in operator.log.read_text()
