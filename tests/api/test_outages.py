"""What the operator does while something of the cluster is away: a webhook, its definition."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import Played, ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT, skipping_where_unavailable
from tests.localplay import until

CRD = ROOT / "charts" / "ddpjob" / "files" / "crd.yaml"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def webhook(namespace: str) -> Body:
    """One that is asked about every pod of the namespace, and where nobody listens."""
    return {
        "metadata": {"name": f"away-{namespace}"},
        "webhooks": [
            {
                "name": "away.example.com",
                "clientConfig": {"url": "https://127.0.0.1:1/judge"},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


@pytest.mark.deep
async def test_a_webhook_that_is_away_is_told_and_the_start_up_deadline_counts(
    api_server: ApiServer,
    crd: None,
    tmp_path: Path,
    jobs: Jobs,
    played: Played,
    client: Client,
    namespace: str,
) -> None:
    await client.request("POST", HOOKS, webhook(namespace))
    try:
        with OperatorProcess(api_server, tmp_path) as operator:
            operator.wait_until_ready()
            async with played():
                await jobs.create(startupDeadlineSeconds=10)
                job = await jobs.until(
                    lambda job: conditions(job).get("Running") == ("False", "CreateRefused")
                )
                (said,) = [c for c in job["status"]["conditions"] if c["type"] == "Running"]
                assert "away.example.com" in said["message"]
                job = await jobs.until(lambda job: job["status"]["history"])
                assert job["status"]["history"][0]["reason"] == "StartupDeadlineExceeded"
                assert "away.example.com" in job["status"]["failure"]["message"]
                await client.request("DELETE", f"{HOOKS}/away-{namespace}")
                await jobs.in_state("Running")
        events = await client.request("GET", f"/api/v1/namespaces/{namespace}/events")
        assert "CreateRefused" in {event["reason"] for event in events["items"]}
    finally:
        await client.request("DELETE", HOOKS + f"?fieldSelector=metadata.name=away-{namespace}")


@pytest.fixture
def own_server() -> Iterator[ApiServer]:
    """A control plane of this test's own, whose definition nobody else needs."""
    with skipping_where_unavailable():
        server = ApiServer()
    with server:
        yield server


@pytest.mark.deep
async def test_a_definition_that_is_deleted_is_waited_for(
    own_server: ApiServer, tmp_path: Path
) -> None:
    definition = f"customresourcedefinition/{names.PLURAL}.{names.GROUP}"
    own_server.create_namespace("team")
    async with Client(own_server) as client, fake_nodes(client, "node-a") as nodes:
        jobs = Jobs(client, "team")
        with OperatorProcess(own_server, tmp_path) as operator:
            assert operator.process is not None
            await said(operator, "the definition of DDPJob is missing")
            async with ScriptedKubelet(client, list(nodes)):
                for name in ("first", "second"):
                    own_server.install_crd(CRD)
                    await jobs.create(name)
                    await jobs.in_state("Running", name)
                    mark = operator.log.read_text()
                    own_server.kubectl("delete", definition)
                    await said(operator, "the definition of DDPJob is missing", after=len(mark))
            assert operator.process.poll() is None
            assert "Traceback" not in operator.log.read_text()


async def said(operator: OperatorProcess, words: str, *, after: int = 0) -> None:
    await until(lambda: words in operator.log.read_text()[after:], every=0.1)
