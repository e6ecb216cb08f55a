"""Prints what the chart has for Prometheus and Grafana, from the table of metrics.

`python -m tests.monitoring alerts | operator | job | kube-state-metrics`.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import yaml

from ddpjob import names
from ddpjob.api import State

Body = dict[str, Any]

# Rounds that somebody has asked for are no failures.
_ASKED = 'reason!~"Updated|GroupResized|Succeeded"'


def _risen(series: str, time: str) -> str:
    """The increase, also of a counter that first appeared in this time, in a process known before.

    Prometheus takes a counter's first value for no increase, and it may be an old one where the
    process has been scraped for less than this time.
    """
    rise = f"increase({series}[{time}])"
    before = f"last_over_time({series}[{time}] offset {time})"
    known = f"on (job, instance) last_over_time(ddpjob_leader[{time}] offset {time})"
    return f"({rise} and {before} or {series} and {known} or {rise})"


def _goodput(match: str = "") -> str:
    """The part of 6 hours of jobs that was kept work.

    The time of a state is counted when it ends, and one of training may last for days: so their
    time is that of the gauge, and only what was lost is counted.
    """

    def spent(states: str) -> str:
        jobs = f'sum by (namespace) (ddpjob_jobs{{{match}state=~"{states}"}})'
        return f"(60 * sum_over_time({jobs}[6h:1m]))"

    lost = f'ddpjob_phase_seconds_total{{{match}phase="lost"}}'
    lost = f"sum by (namespace) {_risen(lost, '6h')}"
    whole = spent("Starting|Restarting|Running")
    running = f"({spent('Running')} or 0 * {whole})"
    # Work of before these hours may have been lost in them.
    kept = f"clamp_min({running} - ({lost} or 0 * {whole}), 0)"
    return f"{kept} / {whole}"


_LEADERS = "sum by (namespace, job)"
_JOB = "on (namespace, name)"
_LATEST = "max by (namespace, name)"


@dataclass(frozen=True)
class Alert:
    """An alert; docs/runbook.md has a section of its name."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "DDPJobNoLeader",
        f"absent(ddpjob_leader) or {_LEADERS} (ddpjob_leader) != 1"
        f" or {_LEADERS} (ddpjob_leader offset 15m) unless {_LEADERS} (ddpjob_leader)",
        "5m",
        "critical",
        "No operator of ddpjob reconciles jobs, or two do.",
    ),
    Alert(
        "DDPJobOperatorBehind",
        "max(ddpjob_queue_oldest_seconds) > 60",
        "2m",
        "warning",
        "A DDPJob has waited for {{ $value | humanizeDuration }} for the operator.",
    ),
    Alert(
        "DDPJobRequestsFail",
        'sum by (code) (rate(ddpjob_api_requests_total{code=~"0|5.."}[5m])'  # a quota's is 403 too
        ' or rate(ddpjob_api_requests_total{code="403",verb!="POST"}[5m])) > 0.1',
        "10m",
        "warning",
        "The API server answers the operator with {{ $labels.code }}.",
    ),
    Alert(
        "DDPJobPending",
        f'{_LATEST} (ddpjob_state{{state=~"Pending|Starting|Restarting"}}) == 1',
        "30m",
        "warning",
        "DDPJob {{ $labels.namespace }}/{{ $labels.name }} does not start.",
    ),
    Alert(
        "DDPJobMakesNoSteps",
        f"(time() - {_LATEST} (ddpjob_last_step_timestamp_seconds)"
        f" > {_JOB} 3 * ({_LATEST} (ddpjob_hang_timeout_seconds) > 0))"
        f' and {_JOB} ddpjob_state{{state="Running"}} == 1'
        f" unless {_JOB} {_LATEST} (ddpjob_step) >= {_LATEST} (ddpjob_total_steps)",
        "1m",
        "warning",
        "DDPJob {{ $labels.namespace }}/{{ $labels.name }} has made no step for"
        " {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "DDPJobRestartsOften",
        f"sum by (namespace) {_risen(f'ddpjob_restarts_total{{{_ASKED}}}', '1h')} > 3",
        "0m",
        "warning",
        "DDPJobs in {{ $labels.namespace }} restarted {{ $value | humanize }} times in an hour.",
    ),
    Alert(
        "DDPJobGoodputLow",
        f"{_goodput()} < 0.8",
        "1h",
        "warning",
        "DDPJobs in {{ $labels.namespace }} use {{ $value | humanizePercentage }} of their time.",
    ),
)


def alerts() -> Body:
    """Return the spec of a PrometheusRule, which is a file of rules too."""
    rules = [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": each.wait,
            "labels": {"severity": each.severity},
            "annotations": {
                "summary": each.summary,
                "runbook_url": f"docs/runbook.md#{each.name.lower()}",
            },
        }
        for each in ALERTS
    ]
    return {"groups": [{"name": "ddpjob", "rules": rules}]}


def kube_state_metrics() -> Body:
    """Return the file for --custom-resource-state-config-file of kube-state-metrics."""

    def gauge(name: str, text: str, path: Sequence[str]) -> Body:
        each = {"type": "Gauge", "gauge": {"path": [*path], "nilIsZero": True}}
        return {"name": name, "help": text, "each": each}

    states = {"labelName": "state", "path": ["status", "state"], "list": [*get_args(State)]}
    known = {
        "image": ["spec", "image"],
        "attempt": ["status", "attempt"],
        "queue": ["metadata", "labels", "kueue.x-k8s.io/queue-name"],
    }
    cause = {name: [name] for name in ("reason", "exception", "rank", "node")}
    metrics = [
        {
            "name": "info",
            "help": "A DDPJob.",
            "each": {"type": "Info", "info": {"labelsFromPath": known}},
        },
        {
            "name": "failure",
            "help": "The first cause of the last attempt that failed.",
            "each": {
                "type": "Info",
                "info": {"path": ["status", "failure"], "labelsFromPath": cause},
            },
        },
        {
            "name": "state",
            "help": "The state of a DDPJob.",
            "each": {"type": "StateSet", "stateSet": states},
        },
        gauge("restarts", "Rounds after the first one.", ("status", "restarts")),
        gauge("job_step", "The last step that the status has.", ("status", "progress", "step")),
        gauge("nodes_desired", "The nodes of the group.", ("status", "nodes", "desired")),
        gauge("nodes_running", "Those of them that run.", ("status", "nodes", "running")),
        gauge("nodes_spare", "Pods that wait for a rank.", ("status", "nodes", "spares")),
        gauge("productive_seconds", "Kept work.", ("status", "goodput", "productiveSeconds")),
        gauge("lost_seconds", "Repeated work.", ("status", "goodput", "lostSeconds")),
        gauge(
            "state_timestamp_seconds",
            "The time at which the state began. The time after it is in none of these sums yet.",
            ("status", "goodput", "since"),
        ),
        gauge("hang_timeout_seconds", "spec.hangTimeoutSeconds.", ("spec", "hangTimeoutSeconds")),
    ]
    kind = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    labels = {
        "namespace": ["metadata", "namespace"],
        "name": ["metadata", "name"],
        "uid": ["metadata", "uid"],
    }
    resource = {
        "groupVersionKind": kind,
        "metricNamePrefix": "ddpjob",
        "labelsFromPath": labels,
        "metrics": metrics,
    }
    return {"kind": "CustomResourceStateMetrics", "spec": {"resources": [resource]}}


@dataclass(frozen=True)
class Panel:
    """A picture of a dashboard, `width` of 24 columns wide."""

    title: str
    series: tuple[tuple[str, str], ...]
    """Expressions and legends."""
    unit: str = "short"
    width: int = 12
    kind: str = "timeseries"


def _quantiles(name: str, by: str = "") -> tuple[tuple[str, str], ...]:
    of = f"sum by (le{by and ', ' + by}) (rate({name}_bucket[$__rate_interval]))"
    legend = by and f" {{{{{by}}}}}"
    return tuple((f"histogram_quantile({q}, {of})", f"p{q * 100:.0f}{legend}") for q in (0.5, 0.95))


def _rate(name: str, by: str, match: str = "") -> tuple[tuple[str, str], ...]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return ((f"sum by ({by}) (rate({name}{match}[$__rate_interval]))", legend),)


_IN = '{namespace=~"$namespace"}'
_OF = '{namespace="$namespace", name="$name"}'
_LIVE = f"(time() - ddpjob_state_timestamp_seconds{_OF})"
_LIVE += f' * ignoring (state) ddpjob_state{_OF[:-1]}, state="Running"}}'
_KEPT = f"(ddpjob_productive_seconds{_OF} + {_LIVE})"
OPERATOR = (
    Panel("Leaders", (("sum(ddpjob_leader)", "leaders"),), width=6, kind="stat"),
    Panel("Jobs", ((f"sum by (state) (ddpjob_jobs{_IN})", "{{state}}"),), width=18),
    Panel("Decisions", _rate("ddpjob_reconcile_seconds_count", "result"), "ops"),
    Panel("Time of decisions", _quantiles("ddpjob_reconcile_seconds"), "s"),
    Panel(
        "Queue",
        (("max(ddpjob_queue_depth)", "jobs"), ("max(ddpjob_queue_oldest_seconds)", "oldest, s")),
    ),
    Panel("Requests to the API server", _rate("ddpjob_api_requests_total", "verb, code"), "reqps"),
    Panel("Time of requests", _quantiles("ddpjob_api_request_seconds", "verb"), "s"),
    Panel("Memory", (("max(ddpjob_memory_peak_bytes)", "peak"),), "bytes"),
    Panel("Restarts by cause", _rate("ddpjob_restarts_total", "reason, in_place", _IN), "ops"),
    Panel("Failures", _rate("ddpjob_failures_total", "reason, charged", _IN), "ops"),
    Panel("From a restart until all nodes run", _quantiles("ddpjob_recovery_seconds"), "s"),
    Panel("In queues, before the first pods", _quantiles("ddpjob_first_pods_seconds"), "s"),
    Panel("From the first pods until all nodes run", _quantiles("ddpjob_start_seconds"), "s"),
    Panel("Ended jobs", _rate("ddpjob_finished_total", "state", _IN), "ops"),
    Panel(
        "Goodput of 6 hours",
        ((_goodput('namespace=~"$namespace",'), "{{namespace}}"),),
        "percentunit",
    ),
    Panel(
        "Time not spent in training",  # which is counted when it ends
        _rate("ddpjob_phase_seconds_total", "phase", _IN[:-1] + ',phase!="productive"}'),
    ),
)
JOB = (
    Panel("State", ((f"ddpjob_state{_OF} == 1", "{{state}}"),), width=12, kind="state-timeline"),
    Panel("Restarts", ((f"ddpjob_restarts{_OF}", "restarts"),), width=4, kind="stat"),
    Panel(
        "First cause of the last failure",
        ((f"ddpjob_failure{_OF}", "{{reason}} {{exception}} rank {{rank}} on {{node}}"),),
        width=8,
        kind="stat",
    ),
    Panel("Loss", ((f"ddpjob_loss{_OF}", "rank {{node_rank}}"),)),
    Panel("Step", ((f"ddpjob_step{_OF}", "node {{node_rank}}"),)),
    Panel(
        "Samples a second, by node: stragglers",
        ((f"ddpjob_samples_per_second{_OF}", "node {{node_rank}}"),),
    ),
    Panel(
        "Since the last step",
        ((f"time() - ddpjob_last_step_timestamp_seconds{_OF}", "node {{node_rank}}"),),
        "s",
    ),
    Panel(
        "Members and spares",
        tuple((f"ddpjob_nodes_{what}{_OF}", what) for what in ("desired", "running", "spare")),
    ),
    Panel(
        "Goodput",
        ((f"{_KEPT} / ({_KEPT} + ddpjob_lost_seconds{_OF})", "kept of what ran"),),
        "percentunit",
    ),
)


def dashboard(title: str, panels: Sequence[Panel], *variables: tuple[str, str]) -> Body:
    """Return a dashboard of Grafana; `variables` are names and queries."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    drawn, x, y = list[Body](), 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > 24:
            x, y = 0, y + 8
        targets: list[Body] = [
            {"datasource": source, "expr": expr, "legendFormat": legend, "refId": chr(65 + n)}
            for n, (expr, legend) in enumerate(panel.series)
        ]
        is_stat = panel.kind == "stat"
        is_named = is_stat and "{{" in panel.series[0][1]
        if is_stat:  # of what is now: each cause of before is a series too
            targets = [{**target, "instant": True, "range": False} for target in targets]
        drawn.append(
            {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "datasource": source,
                "gridPos": {"h": 8, "w": panel.width, "x": x, "y": y},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "options": {"textMode": "name"} if is_named else {},
                "targets": targets,
            }
        )
        x += panel.width
    is_of_all = len(variables) == 1  # by namespace
    lists: list[Body] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    for name, query in variables:
        lists.append(
            {
                "name": name,
                "type": "query",
                "datasource": source,
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "includeAll": is_of_all,
                "multi": is_of_all,
            }
        )
    return {
        "uid": title.lower().replace(" ", "-").replace(",", ""),
        "title": title,
        "tags": ["ddpjob"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": lists},
        "panels": drawn,
    }


def of_operator() -> Body:
    """Return the dashboard of the operator and of all jobs."""
    return dashboard(
        "ddpjob, operator", OPERATOR, ("namespace", "label_values(ddpjob_jobs, namespace)")
    )


def of_job() -> Body:
    """Return the dashboard of one job."""
    return dashboard(
        "ddpjob, job",
        JOB,
        ("namespace", "label_values(ddpjob_state, namespace)"),
        ("name", 'label_values(ddpjob_state{namespace="$namespace"}, name)'),
    )


def main(what: str) -> None:
    """Print one of them."""
    if what in ("operator", "job"):
        print(json.dumps(of_operator() if what == "operator" else of_job(), indent=1))
    else:
        body = alerts() if what == "alerts" else kube_state_metrics()
        print("# Generated by `make generate` from tests/monitoring.py. Do not edit.")
        print(yaml.safe_dump(body, sort_keys=False, width=110), end="")


if __name__ == "__main__":
    main(sys.argv[1])
