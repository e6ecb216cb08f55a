"""The operator as it is installed, a process with the chart's rights, against a real API server."""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress

import pytest

from ddpjob import names
from ddpjob.controller.controller import load_agent
from ddpjob.json_depth import Body
from ddpjob.pods import render
from tests.api.audited import is_creation, made_a_pod, raised_before_deleted
from tests.api.jobs import Jobs, conditions, rank
from tests.builders import job, job_object
from tests.chaos.source import blind
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End, Life
from tests.localplay import until


def fails_once(pod: Body) -> Life:
    attempt, node_rank = rank(pod)
    if attempt == 0 and node_rank == 1:
        return Life(run_seconds=1.0, end=End(exit_code=1, message="ValueError: boom"))
    return Life(run_seconds=None if attempt == 0 else 1.0)


async def test_a_refusal_is_quoted_and_over_once_its_cause_is(
    operator: OperatorProcess, jobs: Jobs, played: Played, client: Client, namespace: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await client.request("POST", quotas, quota)
    async with played():
        await jobs.create()
        await jobs.until(lambda job: conditions(job).get("Running") == ("False", "CreateRefused"))
        await client.request("DELETE", f"{quotas}/few")
        await jobs.in_state("Running")


async def test_pods_pass_pod_security_restricted(
    api_server: ApiServer, operator: OperatorProcess, played: Played, client: Client
) -> None:
    name = f"restricted-{random.randrange(2**32):x}"
    api_server.create_namespace(name, labels={"pod-security.kubernetes.io/enforce": "restricted"})
    jobs = Jobs(client, name)
    async with played():
        sidecar = {"containers": [{"name": "side", "image": "x"}]}
        await jobs.create(template={"spec": sidecar})
        await jobs.in_state("Running")
    api_server.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.deep
async def test_killing_the_operator_twenty_times_changes_nothing(
    api_server: ApiServer, operator: OperatorProcess, jobs: Jobs, played: Played
) -> None:
    """At random moments of a running and of a restarting job."""
    moments = random.Random(20)

    def life(pod: Body) -> Life:
        attempt, node_rank = rank(pod)
        wait = pod["metadata"]["labels"][names.JOB_LABEL] == "steady"
        if wait:
            return Life()
        failing = attempt < 3 and node_rank == attempt
        return Life(run_seconds=4.0, end=End(exit_code=1)) if failing else Life()

    mark = api_server.audit.mark()
    async with played(life) as kubelet:
        await jobs.create("steady", nnodes=4)
        no_pause = {"backoffSeconds": {"first": 0}}
        await jobs.create("restarting", nnodes=4, failurePolicy=no_pause)
        for _ in range(20):
            operator.kill()
            operator.start()
            await asyncio.sleep(moments.uniform(0.0, 3.0))
        operator.wait_until_ready()
        await jobs.in_state("Running", "steady")
        await jobs.until(
            lambda job: job["status"]["attempt"] == 3 and job["status"]["state"] == "Running",
            "restarting",
        )
        for name, attempt in (("steady", 0), ("restarting", 3)):
            for node_rank in range(4):
                kubelet.finish(jobs.namespace, f"{name}-{attempt}-{node_rank}")
        steady = await jobs.in_state("Succeeded", "steady")
        restarting = await jobs.in_state("Succeeded", "restarting")
    assert (steady["status"]["restarts"], steady["status"]["attempt"]) == (0, 0)
    assert (restarting["status"]["restarts"], restarting["status"]["attempt"]) == (3, 3)
    assert restarting["status"]["budget"]["charged"] == 3
    writes = api_server.audit.writes(mark, namespace=jobs.namespace)
    tried = {e.name for e in writes if is_creation(e)}
    created = Counter(e.name for e in writes if made_a_pod(e))
    # An attempt may fail while an operator that was killed had yet to create the last pods of it.
    lasting = {f"steady-0-{r}" for r in range(4)} | {f"restarting-3-{r}" for r in range(4)}
    possible = lasting | {f"restarting-{a}-{r}" for a in range(3) for r in range(4)}
    assert lasting <= tried <= possible and set(created.values()) == {1}
    assert raised_before_deleted(writes) and not blind(writes, operators.USER)


async def test_starting_the_operator_again_writes_nothing(
    api_server: ApiServer, operator: OperatorProcess, jobs: Jobs, played: Played
) -> None:
    async with played():
        await jobs.create()
        await jobs.in_state("Running")
        await asyncio.sleep(3)
        mark = api_server.audit.mark()
        operator.kill()
        operator.start()
        operator.wait_until_ready()
        await asyncio.sleep(3)
        assert api_server.audit.writes(mark, user=operators.USER, namespace=jobs.namespace) == []


def agent_of_nobody() -> Body:
    """The ConfigMap that the operator shares among jobs, after the job that owned it."""
    body = render.config_map(job(), load_agent())
    metadata = {"name": body["metadata"]["name"]}
    return {"metadata": metadata, "immutable": True, "binaryData": body["binaryData"]}


async def test_what_is_granted_is_what_is_used(
    api_server: ApiServer,
    mark: int,
    operator: OperatorProcess,
    jobs: Jobs,
    played: Played,
    client: Client,
    namespace: str,
) -> None:
    """Every verb of the chart's role is called by some part of a job's life, and no other is.

    The Lease of two replicas has a role of its own (test_replicas.py).
    """
    foreign = {"metadata": {"name": "taken"}, "spec": {"clusterIP": "None"}}
    await client.request("POST", f"/api/v1/namespaces/{namespace}/services", foreign)
    await client.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", agent_of_nobody())
    elsewhere = f"elsewhere-{random.randrange(2**32):x}"
    api_server.create_namespace(elsewhere)

    def script(pod: Body) -> Life:
        stays = pod["metadata"]["labels"][names.JOB_LABEL] in ("late", "opened")
        return Life() if stays else fails_once(pod)

    granted = {
        (resource, verb)
        for found in operators.installed_objects()
        if found["kind"] == "ClusterRole" and found["metadata"]["name"] == ACCOUNT_ROLE
        for rule in found["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Not a request of its own: the API server asks for it when an owner reference blocks deletion.
    granted.discard(("ddpjobs/finalizers", "update"))

    def used() -> set[tuple[str, str]]:
        return {
            (entry.resource, entry.verb)
            for entry in api_server.audit.entries(mark)
            if entry.user == operators.USER and entry.resource not in ("", "leases")
        }

    async with played(script):
        await jobs.create(ttlSecondsAfterFinished=0)
        await jobs.create("taken")
        await jobs.create("late", activeDeadlineSeconds=2)
        await Jobs(client, elsewhere).create()
        await jobs.create("opened")
        await jobs.in_state("Running", "opened")
        pod = f"/api/v1/namespaces/{namespace}/pods/opened-0-0"
        label = names.MANAGED_BY_LABEL
        changes: tuple[Body, ...] = ({"ownerReferences": None}, {"labels": {label: None}})
        for change in changes:
            body = {"metadata": change}
            await client.request("PATCH", pod, body, content_type=MERGE)

            async def is_back() -> bool:
                found = (await client.request("GET", pod))["metadata"]
                return "ownerReferences" in found and label in found["labels"]

            await until(is_back, seconds=200)
        await jobs.patch("opened", suspend=True)
        await jobs.in_state("Suspended", "opened")
        await jobs.patch("opened", suspend=False, networkPolicy={"enabled": False})
        watches = {(resource, verb) for resource, verb in granted if verb == "watch"}
        with suppress(TimeoutError):
            await until(lambda: used() | watches == granted, seconds=60, every=0.2)
    operator.kill()  # a watch is logged once it has ended
    api_server.request("DELETE", f"/api/v1/namespaces/{elsewhere}")
    with suppress(TimeoutError):
        await until(lambda: used() == granted, seconds=60, every=0.2)
    assert used() == granted
    gets = [
        entry
        for entry in api_server.audit.entries(mark)
        if (entry.user, entry.resource, entry.verb) == (operators.USER, "pods", "get")
        if entry.namespace == namespace  # earlier tests have left jobs elsewhere
    ]
    assert len(gets) == len(changes)


ACCOUNT_ROLE = operators.ACCOUNT[1]


async def test_the_operator_lives_through_a_restart_of_the_api_server(
    api_server: ApiServer, operator: OperatorProcess, jobs: Jobs, played: Played
) -> None:
    async with played() as kubelet:
        await jobs.create()
        await jobs.in_state("Running")
        await asyncio.to_thread(api_server.restart_apiserver)
        for node_rank in range(2):
            kubelet.finish(jobs.namespace, f"digits-0-{node_rank}")
        await jobs.in_state("Succeeded")
    assert operator.process is not None and operator.process.poll() is None
    assert "ddpjob_api_requests_total" in operator.get("/metrics")


DEPTHS = (300, 1100, 9000)  # of 10,000 that an API server stores


async def test_jobs_of_any_depth_hurt_no_other(
    api_server: ApiServer, operator: OperatorProcess, jobs: Jobs, played: Played
) -> None:
    """Seen by a watch, then, since the operator starts again, by a list."""
    where = ("-n", jobs.namespace)
    for depth in DEPTHS:
        body = json.dumps(job_object(f"deep-{depth}", template={"spec": {"x": 0}}))
        text = body.replace('"x": 0', '"x": ' + '{"a":' * depth + "0" + "}" * depth)
        api_server.kubectl("create", "--raw", jobs.path, "-f", "-", input=text)

    async def refused() -> None:
        for depth in DEPTHS:
            column = "jsonpath={.status.conditions[?(@.reason=='Invalid')].message}"
            async with asyncio.timeout(200):
                while "objects within each other" not in (
                    said := api_server.kubectl(
                        "get", "ddpjob", f"deep-{depth}", *where, "-o", column
                    )
                ):
                    await asyncio.sleep(0.2)
            assert said.startswith("spec.template: ")

    async with played():
        await jobs.create("before")
        await jobs.in_state("Running", "before")
        await refused()
        operator.kill()
        operator.start()
        await jobs.create("after")
        await jobs.in_state("Running", "after")
    log = operator.log.read_text()
    assert "Traceback" not in log and operator.process and operator.process.poll() is None
    api_server.kubectl("delete", "ddpjobs", "--all", *where)
