"""2,000 jobs out of the schema, as a real API server sees them and what is made of them."""

import asyncio
import json
from collections import Counter
from typing import Any

import orjson
import pytest

from ddpjob import api
from ddpjob.api import DDPJob
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, NETWORK_POLICIES, PODS, SERVICES, Resource
from ddpjob.controller.controller import load_agent
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.cluster.apiserver import ApiError
from tests.cluster.client import Client
from tests.fuzz import fuzzed_job

pytestmark = pytest.mark.deep

JOBS = 2000
AT_ONCE = 32
TRY = "?dryRun=All&fieldValidation=Strict"  # as kubectl asks
AGENT = load_agent()


class Trial:
    """Tries everything by dry run in one namespace, and keeps what should not be."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self) -> None:
        """All jobs, some at once."""
        numbers = iter(range(JOBS))

        async def work() -> None:
            for number in numbers:
                await self.judge(number)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def judge(self, number: int) -> None:
        """One job: both have to agree on it, and what is rendered has to be what pods can be."""
        body = fuzzed_job(number)
        problems = api.validate(body)
        answer = await self.create(number, DDPJOBS, body, TRY)
        if isinstance(answer, ApiError) != bool(problems):
            self.fault(number, body, f"offline: {[*map(str, problems)]}, API server: {answer}")
        if isinstance(answer, ApiError) or problems:
            self.seen["refused"] += 1
            return
        job = DDPJob.parse(answer)
        if job.spec != DDPJob.parse(body).spec:
            self.fault(number, body, f"stored otherwise than read offline: {answer['spec']}")
        try:
            objects = rendered(job)
        except InvalidJob:
            self.seen["not rendered"] += 1
            return
        answers = [await self.create(number, resource, found) for resource, found in objects]
        errors = [answer for answer in answers if isinstance(answer, ApiError)]
        self.seen["pods refused" if errors else "accepted"] += 1
        for (resource, _), answer in zip(objects, answers, strict=True):
            if isinstance(answer, ApiError) and resource in (SERVICES, CONFIGMAPS):
                self.fault(number, body, f"{resource.kind}: {answer}")

    async def create(
        self, number: int, resource: Resource, body: Body, query: str = "?dryRun=All"
    ) -> Body | ApiError:
        """What the API server would store, or its refusal; an error of its own is raised."""
        path = resource.path(self.namespace) + query
        try:
            return await self.client.request("POST", path, body)
        except ApiError as error:
            if error.code not in (400, 403, 422):
                self.fault(number, body, str(error))
            return error

    def fault(self, number: int, body: Any, words: str) -> None:
        self.faults.append(f"fuzzed_job({number}): {words[:1500]}\n{json.dumps(body)[:3000]}")


def rendered(job: DDPJob) -> list[tuple[Resource, Body]]:
    """What the operator would create, of the pods the first and the last. Raises InvalidJob."""
    stamp = render.pods(job, AGENT, Policy())
    network = render.network_policy(job, Policy())
    ranks = {0, job.spec.nnodes - 1}
    return [
        (SERVICES, render.service(job, "t" * 32)),
        (CONFIGMAPS, render.config_map(job, AGENT)),
        *([(NETWORK_POLICIES, network)] if network else []),
        *((PODS, orjson.loads(stamp.body(rank))) for rank in sorted(ranks)),
    ]


@pytest.mark.usefixtures("crd")
async def test_what_the_schema_lets_in_is_refused_or_becomes_pods(
    client: Client, namespace: str
) -> None:
    """Never an exception of ours and never a 5xx; validate and API server agree on every job."""
    trial = Trial(client, namespace)
    await trial.run()
    assert not trial.faults, "\n\n".join(trial.faults[:5])
    assert sum(trial.seen.values()) == JOBS
    for outcome in ("refused", "not rendered", "pods refused", "accepted"):
        assert trial.seen[outcome] > JOBS / 50, trial.seen
