"""The chart asks for metrics that exist, and each of its alerts has a page."""

import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ddpjob.metrics import METRICS
from ddpjob_agent.progress import METRICS_OF_PAGE
from tests import monitoring
from tests.cluster.tiers import ROOT


def known() -> set[str]:
    """Names of all series: of the operator, of the agents, of kube-state-metrics."""
    found = {name for name, _ in METRICS_OF_PAGE.values()}
    for metric in METRICS:
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        found |= {metric.name + end for end in ends.get(metric.kind, ("",))}
    (resource,) = monitoring.kube_state_metrics()["spec"]["resources"]
    return found | {f"ddpjob_{metric['name']}" for metric in resource["metrics"]}


def test_whatever_is_asked_for_exists() -> None:
    panels = [*monitoring.OPERATOR, *monitoring.JOB]
    asked = [expr for panel in panels for expr, _ in panel.series]
    asked += [alert.expr for alert in monitoring.ALERTS]
    names = {name for expr in asked for name in re.findall(r"ddpjob_\w+", expr)}
    assert names <= known()


def test_every_alert_has_its_page() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    assert re.findall("^## (.*)$", page, re.MULTILINE) == [a.name for a in monitoring.ALERTS]


@pytest.mark.parametrize("board", [monitoring.of_operator(), monitoring.of_job()])
def test_grafanas_own_classes_know_every_field_of_a_dashboard(board: dict[str, Any]) -> None:
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))

    def without_defaults(found: Any, ours: Any) -> Any:
        if isinstance(ours, dict):
            return {name: without_defaults(found.get(name), ours[name]) for name in ours}
        if isinstance(ours, list):
            return [without_defaults(*pair) for pair in zip(found, ours, strict=True)]
        return found

    assert without_defaults(read, board) == board


def test_panels_do_not_overlap() -> None:
    for found in (monitoring.of_operator(), monitoring.of_job()):
        places = [panel["gridPos"] for panel in found["panels"]]
        cells = [
            (x, place["y"]) for place in places for x in range(place["x"], place["x"] + place["w"])
        ]
        assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
