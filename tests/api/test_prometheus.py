"""A real Prometheus scrapes operator, agents and kube-state-metrics: dashboards find series, and
alerts fire. With `--write-dashboards` it draws them into docs/pictures."""

import asyncio
import json
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import dashboards
from ddpjob import names
from ddpjob.cluster import PODS
from tests import monitoring
from tests.api.jobs import Jobs
from tests.api.processes import jobs, script
from tests.cluster import binaries
from tests.cluster.apiserver import ApiServer
from tests.cluster.operator import OperatorProcess
from tests.cluster.processes import Component, free_ports
from tests.cluster.tiers import ROOT, skipping_where_unavailable

__all__ = ["jobs"]  # a fixture
pytestmark = pytest.mark.builds("prometheus", "kube-state-metrics")

PICTURES = ROOT / "docs" / "pictures"
STATES = ROOT / "charts" / "ddpjob" / "files" / "kube-state-metrics.yaml"
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
        rate = 40 + 5 * dist.get_rank() + step % 7
        report = {"step": step, "loss": 0.1 + 20 / (40 + step), "samples_per_second": rate}
        path = pathlib.Path(os.environ["DDPJOB_PROGRESS_FILE"])
        path.with_suffix(".new").write_text(json.dumps(report))
        path.with_suffix(".new").replace(path)
        if step == 5 * number and number <= 6:  # the same step would be no progress
            sys.exit(3)
"""


class Prometheus:
    """A Prometheus that looks each second; a rule waits for nothing."""

    def __init__(self, folder: Path, program: Path, operator: str, states: str) -> None:
        (self.port,) = free_ports(1)
        self.agents, self.begun = folder / "agents.json", time.time()
        rules = monitoring.alerts()
        for rule in rules["groups"][0]["rules"]:
            rule["for"] = "0s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        jobs = {
            "operator": {"static_configs": [{"targets": [operator]}]},
            "kube-state-metrics": {"static_configs": [{"targets": [states]}]},
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

    async def find(self, expr: str, **over: float) -> list[Any]:
        """What an expression gives now, or in a time from `start` to `end` at each `step`."""
        query = urllib.parse.urlencode({"query": expr, **over})
        path = "query_range" if over else "query"
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"

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
    jobs: Jobs, operator: OperatorProcess, api_server: ApiServer, tmp_path: Path
) -> AsyncIterator[Prometheus]:
    """It knows all that a site's would, and a job of two nodes that has been begun anew six times,
    of which it knows the agents, and one that has ended well."""
    with skipping_where_unavailable():
        program = binaries.build(binaries.PROMETHEUS)["prometheus"]
        kube_state_metrics = binaries.build(binaries.KUBE_STATE_METRICS)["kube-state-metrics"]
    port, own_port = free_ports(2)
    states = Component(
        kube_state_metrics,
        [
            *("--custom-resource-state-only", "--custom-resource-state-config-file", str(STATES)),
            *("--kubeconfig", str(api_server.kubeconfig), f"--namespaces={jobs.namespace}"),
            *("--host=127.0.0.1", f"--port={port}"),
            *("--telemetry-host=127.0.0.1", f"--telemetry-port={own_port}"),
        ],
        log=tmp_path / "kube-state-metrics.log",
    )
    targets = (f"127.0.0.1:{each}" for each in (operator.port, port))
    made = Prometheus(tmp_path, program, *targets)
    try:
        states.start()
        made.component.start()
        await made.until("ddpjob_leader == 1")
        policy = {"maxRestarts": 9, "backoffSeconds": {"first": 1, "cap": 1}}
        await jobs.create(args=[script(tmp_path, SOURCE)], failurePolicy=policy)

        def is_begun_anew(job: dict[str, Any]) -> bool:
            status = job.get("status") or {}
            return status.get("restarts") == 6 and status["state"] == "Running"

        await jobs.in_state("Running")
        agents = [
            f"{pod['status']['podIP']}:{names.AGENT_PORT}"
            for pod in await jobs.children(PODS)
            if pod["status"].get("phase") == "Running"
        ]
        # The PodMonitor has this label by that of the pod.
        found = {"targets": agents, "labels": {"name": "digits"}}
        made.agents.write_text(json.dumps([found]))
        await jobs.until(is_begun_anew)
        await jobs.create("short", nnodes=1, launcher="none", command=["true"])
        yield made
    finally:
        made.component.kill()
        states.kill()


async def test_panels_show_what_happens_and_alerts_fire(
    prometheus: Prometheus, jobs: Jobs, operator: OperatorProcess, request: pytest.FixtureRequest
) -> None:
    await prometheus.until("count(up == 1) == 4")
    (found,) = await prometheus.until('ALERTS{alertname="DDPJobRestartsOften"}')
    assert found["metric"]["namespace"] == jobs.namespace
    values = {"$__rate_interval": "30s", "$namespace": jobs.namespace, "$name": "digits"}

    def asked(expr: str) -> str:
        for name, value in values.items():
            expr = expr.replace(name, value)
        return expr

    panels = [*monitoring.OPERATOR, *monitoring.JOB]
    for expr in (expr for panel in panels for expr, _ in panel.series):
        assert await prometheus.until(asked(expr)), expr
    assert not await prometheus.find('ALERTS{alertname="DDPJobNoLeader"}')
    if request.config.getoption("--write-dashboards"):
        await asyncio.sleep(60)
        over = {"start": prometheus.begun, "end": time.time(), "step": dashboards.STEP}
        for board in (monitoring.of_operator(), monitoring.of_job()):
            series = {
                panel["id"]: [
                    line
                    for target in panel["targets"]
                    for line in dashboards.lines(
                        target, await prometheus.find(asked(target["expr"]), **over)
                    )
                ]
                for panel in board["panels"]
            }
            dashboards.draw(board, series, PICTURES / f"{board['uid']}.svg")
    operator.kill()
    await prometheus.until('ALERTS{alertname="DDPJobNoLeader"}')
