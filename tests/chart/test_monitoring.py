"""What the chart has for Prometheus and Grafana, with the values that docs/how-to.md shows."""

import json
import re
from pathlib import Path

import pytest
import yaml

from ddpjob.json_depth import Body
from ddpjob_agent.progress import METRICS_OF_PAGE
from tests import monitoring
from tests.builders import job, made_pod, trainer
from tests.chart.rendering import ROOT, Helm, of_kind, only

PAGE = (ROOT / "docs" / "how-to.md").read_text()
KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


@pytest.fixture
def rendered(helm: Helm, tmp_path: Path) -> list[Body]:
    """The objects, with the page's values."""
    (values,) = re.findall(r"```yaml\n# values.yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    return helm.objects("--values", str(tmp_path / "values.yaml"))


def test_monitors_find_the_operator_and_the_agents(rendered: list[Body]) -> None:
    service, monitor = only(rendered, "Service"), only(rendered, "ServiceMonitor")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    assert [endpoint["port"]] == [port["name"] for port in service["spec"]["ports"]]
    pod = made_pod(job())
    monitor = only(rendered, "PodMonitor")["spec"]
    (wanted,) = monitor["selector"]["matchExpressions"]
    assert wanted["key"] in pod["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert [endpoint["port"]] == [port["name"] for port in trainer(pod)["ports"]]
    (label,) = endpoint["relabelings"][0]["sourceLabels"]
    assert label.endswith(re.sub(r"\W", "_", wanted["key"]))
    kept = endpoint["metricRelabelings"][0]["regex"]
    names = [name for name, _ in METRICS_OF_PAGE.values()]
    assert all(re.fullmatch(kept, name) for name in names) and kept.count("|") + 1 == len(names)
    assert monitor["sampleLimit"] >= len(names)


def test_the_page_names_pods_and_their_labels_as_they_are() -> None:
    pod = made_pod(job())
    named = set(re.findall(r"ddpjob\.dev/\w+", PAGE))
    assert len(named) == 3 and named <= set(pod["metadata"]["labels"])
    assert f"-c {trainer(pod)['name']} " in PAGE


def test_rules_and_dashboards_are_those_of_the_table(helm: Helm, rendered: list[Body]) -> None:
    assert only(rendered, "PrometheusRule")["spec"] == monitoring.alerts()
    boards = [
        json.loads(text)
        for found in of_kind(rendered, "ConfigMap")
        if found["metadata"]["labels"].get("grafana_dashboard") == "1"
        for text in found["data"].values()
    ]
    assert boards == [monitoring.of_job(), monitoring.of_operator()]
    (rules,) = helm.objects(
        "--set=metrics.rules.enabled=true,metrics.rules.runbook=https://site/page",
        "--show-only=templates/monitoring.yaml",
    )
    (group,) = rules["spec"]["groups"]
    alert = group["rules"][0]
    assert alert["annotations"]["runbook_url"] == f"https://site/page#{alert['alert'].lower()}"
    for kind in KINDS:
        assert only(rendered, kind)["metadata"]["labels"]["release"] == "prometheus"


def test_there_are_none_by_default(helm: Helm) -> None:
    assert not KINDS & {found["kind"] for found in helm.objects()}


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_one_that_would_find_nothing_is_refused(helm: Helm, kind: str) -> None:
    done = helm.refused_or_rendered(f"--set=metrics.{kind}.enabled=true")
    assert done.returncode != 0 and f"metrics.{kind}.enabled needs " in done.stderr


def test_the_file_for_kube_state_metrics_is_that_of_the_table() -> None:
    text = (ROOT / "charts" / "ddpjob" / "files" / "kube-state-metrics.yaml").read_text()
    assert yaml.safe_load(text) == monitoring.kube_state_metrics()
