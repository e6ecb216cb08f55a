"""The bare client: posts what the operator posts, with nothing else to do.

`python -m benchmarks.bare KUBECONFIG` takes the DDPJobs that it finds, renders everything ahead,
and then sends, per job: Service, NetworkPolicy, one status write, pods. No cache, no
watch, no decision, and answers are read but not parsed: what it reaches is what the API server and
aiohttp allow.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import deque
from pathlib import Path

import aiohttp
import orjson

from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, NETWORK_POLICIES, PODS, SERVICES
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import IN_FLIGHT
from ddpjob.controller.controller import load_agent
from ddpjob.plan.decide import decide
from ddpjob.plan.model import Observed
from ddpjob.plan.own import proofs
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.program import print_of

Request = tuple[str, str, bytes]
"""(method, path, body)."""


TOKEN = "t" * 32


def requests(job: DDPJob, agent: render.Agent, now: float) -> list[Request]:
    """What the operator sends for a new job up to its last pod, in its order and byte by byte."""
    at = job.namespace
    stamp = render.pods(job, agent, Policy())
    program = print_of(stamp.program)
    ready = Observed(children_ready=True, spec_hash=stamp.spec_hash, program=program)
    body = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {
            "name": job.name,
            "namespace": at,
            "uid": job.uid,
            "resourceVersion": job.metadata.resource_version,
        },
        "spec": job.spec.to_json(),
        "status": decide(job, ready, now).status.to_json(),
    }
    own = proofs(ready.key, job.uid, job.status.attempt, 0, job.spec.nnodes)
    bodies = (stamp.body(rank, own.of(rank), TOKEN) for rank in range(job.spec.nnodes))
    pods = [("POST", PODS.path(at), pod) for pod in bodies]
    return [
        ("POST", SERVICES.path(at), orjson.dumps(render.service(job, TOKEN))),
        ("POST", NETWORK_POLICIES.path(at), orjson.dumps(render.network_policy(job, Policy()))),
        ("PUT", DDPJOBS.path(at, job.name, "status"), orjson.dumps(body)),
        *pods,
    ]


async def _send(session: aiohttp.ClientSession, line: deque[Request]) -> None:
    while line:
        method, path, body = line.popleft()
        async with session.request(method, path, data=body) as answer:
            text = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status}: {text[:500]!r}")


async def run(options: argparse.Namespace) -> float:
    """Send everything, so many requests at a time; CPU seconds of this process meanwhile."""
    credentials = Credentials.from_kubeconfig(options.kubeconfig)
    headers = {
        "Authorization": f"Bearer {credentials.current_token()}",
        "Content-Type": "application/json",
    }
    connector = aiohttp.TCPConnector(limit=0, ssl=credentials.ssl_context(), keepalive_timeout=75)
    async with aiohttp.ClientSession(
        credentials.server, headers=headers, connector=connector
    ) as session:
        async with session.get(DDPJOBS.path(options.namespace)) as answer:
            items = orjson.loads(await answer.read())["items"]
        agent, now = load_agent(), time.time()
        line = deque(
            request
            for item in items
            for request in requests(DDPJob.parse(item), agent, now)
            if not options.pods_alone or request[1].endswith(f"/{PODS.plural}")
        )
        del items
        gc.freeze()
        if options.wait:
            print("ready", flush=True)
            sys.stdin.readline()
        before = time.process_time()
        await asyncio.gather(*(_send(session, line) for _ in range(options.in_flight)))
        return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--namespace", help="only of its jobs (default: of all)")
    parser.add_argument("--pods-alone", action="store_true", help="send nothing else")
    parser.add_argument("--wait", action="store_true", help="say `ready`, and wait for a line")
    options = parser.parse_args()
    cpu_seconds = asyncio.run(run(options))
    print(json.dumps({"cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()
