"""What forty jobs cost the API server: counts, which no slow machine changes."""

from collections import Counter

import pytest

from ddpjob import names
from tests.builders import job_object
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import Life
from tests.localplay import until

JOBS, NODES = 40, 8


@pytest.mark.deep
async def test_forty_jobs_cost_what_one_does_forty_times(
    api_server: ApiServer, operator: OperatorProcess, client: Client, namespace: str
) -> None:
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"

    async def all_succeeded() -> bool:
        found = (await client.request("GET", path))["items"]
        return all(job.get("status", {}).get("state") == "Succeeded" for job in found)

    mark = api_server.audit.mark()
    async with (
        fake_nodes(client, "node-a", "node-b") as nodes,
        ScriptedKubelet(client, list(nodes), lambda pod: Life(run_seconds=1.0)),
    ):
        for number in range(JOBS):
            await client.request("POST", path, job_object(f"job-{number}", nnodes=NODES))
        await until(all_succeeded, seconds=240, every=0.2)
    writes = [
        entry
        for entry in api_server.audit.writes(mark, user=operators.USER, namespace=namespace)
        if entry.resource != "events"
    ]
    assert [entry for entry in writes if entry.code >= 300] == []
    counts = Counter((entry.verb, entry.resource) for entry in writes)
    status = counts.pop(("update", "ddpjobs/status"))
    assert counts == {
        ("create", "services"): JOBS,
        ("create", "configmaps"): 1,
        ("create", "networkpolicies"): JOBS,
        ("create", "pods"): JOBS * NODES,
    }
    # Starting, Running, Succeeded, and at most once for each pod that starts or ends between them.
    assert 3 * JOBS <= status <= (3 + 2 * NODES) * JOBS
