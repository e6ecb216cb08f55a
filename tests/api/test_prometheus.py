"""A real Prometheus scrapes operator and agents: dashboards find series, and alerts fire."""

import asyncio
import json
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob import names
from ddpjob.cluster import PODS
from tests import monitoring
from tests.api.jobs import Jobs
from tests.api.processes import jobs, script
from tests.cluster import binaries
from tests.cluster.operator import OperatorProcess
from tests.cluster.processes import Component, free_ports
from tests.cluster.tiers import skipping_where_unavailable

__all__ = ["jobs"]  # a fixture
pytestmark = [pytest.mark.builds("prometheus"), pytest.mark.timeout(900)]

# Fails six times, then makes steps until it is ended.
SOURCE = """
    import json, os, pathlib, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tries = pathlib.Path(__file__).with_name(f"tries-{dist.get_rank()}")
    number = int(tries.read_text()) + 1 if tries.exists() else 1
    tries.write_text(str(number))
    for step in range(10**6):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        report = {"step": step, "loss": 0.5, "samples_per_second": 40}
        path = pathlib.Path(os.environ["DDPJOB_PROGRESS_FILE"])
        if dist.get_rank() == 0:
            path.with_suffix(".new").write_text(json.dumps(report))
            path.with_suffix(".new").replace(path)
        if step == 5 * number and number <= 6:  # the same step would be no progress
            sys.exit(3)
"""
# Of these kube-state-metrics is asked, which does not run here, or nothing has happened yet.
ABSENT = ("ddpjob_finished_total",)


class Prometheus:
    """A Prometheus that looks each second; a rule waits for nothing."""

    def __init__(self, folder: Path, program: Path, operator: str) -> None:
        (self.port,) = free_ports(1)
        self.agents = folder / "agents.json"
        rules = monitoring.alerts()
        for rule in rules["groups"][0]["rules"]:
            rule["for"] = "0s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        jobs = {
            "operator": {"static_configs": [{"targets": [operator]}]},
            "agents": {"file_sd_configs": [{"files": [str(self.agents)]}]},
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": name, "honor_labels": True, **found} for name, found in jobs.items()
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.component = Component(
            program,
            [
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            log=folder / "prometheus.log",
        )

    async def find(self, expr: str) -> list[Any]:
        """What an expression gives now."""
        query = urllib.parse.urlencode({"query": expr})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{query}"

        def ask() -> list[Any]:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
                return found

        return await asyncio.to_thread(ask)

    async def until(self, expr: str) -> list[Any]:
        """The same once there is something."""
        async with asyncio.timeout(200):
            while True:
                try:
                    if found := await self.find(expr):
                        return found
                except OSError:
                    assert self.component.runs, self.component.log.read_text()[-3000:]
                await asyncio.sleep(0.5)


@pytest.fixture
async def prometheus(
    jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> AsyncIterator[Prometheus]:
    """It knows the operator and the two agents of a job that has been begun anew six times."""
    with skipping_where_unavailable():
        program = binaries.build(binaries.PROMETHEUS)["prometheus"]
    made = Prometheus(tmp_path, program, f"127.0.0.1:{operator.port}")
    made.component.start()
    try:
        await made.until("ddpjob_leader == 1")
        policy = {"maxRestarts": 9, "backoffSeconds": {"first": 1, "cap": 1}}
        await jobs.create(args=[script(tmp_path, SOURCE)], failurePolicy=policy)

        def is_begun_anew(job: dict[str, Any]) -> bool:
            status = job.get("status") or {}
            return status.get("restarts") == 6 and status["state"] == "Running"

        await jobs.until(is_begun_anew)
        agents = [
            f"{pod['status']['podIP']}:{names.AGENT_PORT}"
            for pod in await jobs.children(PODS)
            if pod["status"].get("phase") == "Running"
        ]
        made.agents.write_text(json.dumps([{"targets": agents}]))
        yield made
    finally:
        made.component.kill()


def asked() -> list[str]:
    """The expressions of both dashboards that need nothing but the operator and the agents."""
    (resource,) = monitoring.kube_state_metrics()["spec"]["resources"]
    absent = [f"ddpjob_{metric['name']}{{" for metric in resource["metrics"]]
    panels = [*monitoring.OPERATOR, *monitoring.JOB]
    every = [expr for panel in panels for expr, _ in panel.series]
    return [expr for expr in every if not any(name in expr for name in [*absent, *ABSENT])]


async def test_panels_show_what_happens_and_alerts_fire(
    prometheus: Prometheus, jobs: Jobs, operator: OperatorProcess
) -> None:
    await prometheus.until("count(up == 1) == 3")
    (found,) = await prometheus.until('ALERTS{alertname="DDPJobRestartsOften"}')
    assert found["metric"]["namespace"] == jobs.namespace
    # An agent's own label; the PodMonitor has it by the pod's label, under another name.
    rates = {"$__rate_interval": "30s", "$namespace": jobs.namespace, ', name="$name"': ""}
    for expr in asked():
        for name, value in rates.items():
            expr = expr.replace(name, value)
        assert await prometheus.until(expr), expr
    assert not await prometheus.find('ALERTS{alertname="DDPJobNoLeader"}')
    operator.kill()
    await prometheus.until('ALERTS{alertname="DDPJobNoLeader"}')
