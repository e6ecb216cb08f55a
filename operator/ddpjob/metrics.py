"""What Prometheus gets of the operator: one table, and where the values come from.

docs/metrics.md, the chart's dashboards and its alerts are made of this table. No label has a job or
a pod: the series of jobs come from their agents, and from kube-state-metrics.
"""

import resource
import sys
import time
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from ddpjob import __version__, api
from ddpjob.api import DDPJob, Status
from ddpjob.controller.controller import Controller
from ddpjob.controller.observer import Observer
from ddpjob.times import seconds_since

Kind = Literal["counter", "gauge", "histogram"]

# Upper bounds of buckets in seconds: of requests, of recoveries, of starts, of whole jobs.
_REQUEST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RECOVERY = (0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 900)
_START = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_JOB = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)


@dataclass(frozen=True)
class Metric:
    """A metric of the operator."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS = (
    Metric("ddpjob_build_info", "gauge", "1, with the operator's version.", ("version",)),
    Metric("ddpjob_leader", "gauge", "1 if this replica reconciles jobs, 0 if it stands by."),
    Metric(
        "ddpjob_jobs",
        "gauge",
        "DDPJobs by their state; only the leader has it.",
        ("namespace", "state"),
    ),
    Metric("ddpjob_queue_depth", "gauge", "Jobs that wait for a worker."),
    Metric("ddpjob_queue_oldest_seconds", "gauge", "For how long the first of them has waited."),
    Metric("ddpjob_memory_peak_bytes", "gauge", "Largest resident set so far."),
    Metric(
        "ddpjob_api_requests",
        "counter",
        "Requests to the API server but watches. Code 0 is a request without an answer.",
        ("verb", "resource", "code"),
    ),
    Metric(
        "ddpjob_api_request_seconds",
        "histogram",
        "The same by the time until the answer was read.",
        ("verb", "resource"),
        _REQUEST,
    ),
    Metric(
        "ddpjob_reconcile_seconds",
        "histogram",
        "Decisions about one job with what followed at once, by their time. The result is done,"
        " refused (by the API server) or error.",
        ("result",),
        _REQUEST,
    ),
    Metric(
        "ddpjob_first_pods_seconds",
        "histogram",
        "A job's time in queues until its first pods are created.",
        (),
        _START,
    ),
    Metric(
        "ddpjob_start_seconds",
        "histogram",
        "From the creation of a job's first pods until all its nodes run.",
        (),
        _START,
    ),
    Metric(
        "ddpjob_recovery_seconds",
        "histogram",
        "From the status of a restart, in place or with new pods, until all nodes run again.",
        (),
        _RECOVERY,
    ),
    Metric(
        "ddpjob_restarts",
        "counter",
        "Rounds that were begun after others, by why: the reason of a failure, Updated or"
        " GroupResized. In place is true if pods stayed.",
        ("namespace", "reason", "in_place"),
    ),
    Metric(
        "ddpjob_failures",
        "counter",
        "Failures by reason, and whether they count towards maxRestarts.",
        ("namespace", "reason", "charged"),
    ),
    Metric("ddpjob_finished", "counter", "Jobs that have ended, by state.", ("namespace", "state")),
    Metric(
        "ddpjob_run_seconds",
        "histogram",
        "The time that ended jobs were starting, running or idle, all attempts together.",
        ("state",),
        _JOB,
    ),
    Metric(
        "ddpjob_phase_seconds",
        "counter",
        "The jobs' time by its use: queued, starting, productive, lost or idle. That of a state is"
        " added when the state ends.",
        ("namespace", "phase"),
    ),
)
_TABLE = {metric.name: metric for metric in METRICS}
_PHASES = ("queued", "starting", "productive", "lost", "idle")


disable_created_metrics()  # type: ignore[no-untyped-call] # a third more series for nobody


class Metrics(Observer):
    """Counts what the controller tells, and reads the rest of its state at each scrape."""

    def __init__(self) -> None:
        """`page` needs a `controller`."""
        self.controller: Controller | None = None
        self._registry = CollectorRegistry()
        self._counters = {m.name: self._counter(m) for m in METRICS if m.kind == "counter"}
        self._histograms = {m.name: self._histogram(m) for m in METRICS if m.kind == "histogram"}
        self._registry.register(self)
        self._left: dict[str, float] = {}
        """By uid of a job that restarts: the monotonic time at which that was stored."""
        self._owed = Counts[str]()
        """By namespace: productive seconds that were counted, and turned out to be lost."""

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def _histogram(self, metric: Metric) -> Histogram:
        buckets = metric.buckets
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=buckets, registry=self._registry
        )

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield the gauges. prometheus_client calls this for each scrape."""
        controller = self.controller
        if controller is None:  # as prometheus_client asks for the names
            return
        known = controller.jobs.values() if controller.leading else ()
        jobs = Counts[tuple[str, ...]]((job.namespace, job.state) for job in known)
        # Peak, in bytes; Linux counts in KiB, macOS in bytes.
        scale = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
        yield _gauge("ddpjob_build_info", {(__version__,): 1})
        yield _gauge("ddpjob_leader", {(): int(controller.leading)})
        yield _gauge("ddpjob_jobs", jobs)
        yield _gauge("ddpjob_queue_depth", {(): len(controller.queue)})
        yield _gauge("ddpjob_queue_oldest_seconds", {(): controller.queue.oldest_seconds})
        yield _gauge("ddpjob_memory_peak_bytes", {(): peak})

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Take in a request to the API server; code 0 is one without an answer."""
        self._count("ddpjob_api_requests", verb, resource, str(code))
        self._observe("ddpjob_api_request_seconds", seconds, verb, resource)

    def reconciled(self, result: str, seconds: float) -> None:
        """Take in a decision about a job."""
        self._observe("ddpjob_reconcile_seconds", seconds, result)

    def wrote(self, job: DDPJob, new: Status, now: float) -> None:
        """Take in a status that has been stored."""
        old, where = job.status, job.namespace
        self._count_time(where, old, new)
        if new.state not in api.FINISHED:  # a rate sees no counter that begins with 1
            for state in api.FINISHED:
                self._count("ddpjob_finished", where, state, by=0)
        if new.start_time and not old.start_time:
            self._observe("ddpjob_first_pods_seconds", _seconds(new, "queued"))
        if new.restarts > old.restarts and new.history:
            last, in_place = new.history[-1], new.attempt == old.attempt
            self._count("ddpjob_restarts", where, _named(last.reason), _word(in_place))
            self._left[job.uid] = time.monotonic()
        if new.failure and new.failure != old.failure:
            charged = bool(new.history) and new.history[-1].charged
            self._count("ddpjob_failures", where, _named(new.failure.reason), _word(charged))
        if new.state == "Running" and old.state != "Running":
            left = self._left.pop(job.uid, None)
            if left is not None:
                self._observe("ddpjob_recovery_seconds", time.monotonic() - left)
            elif (new.attempt, new.round) == (0, 0):
                self._observe("ddpjob_start_seconds", seconds_since(new.start_time, now))
        if new.state not in ("Starting", "Restarting"):
            self._left.pop(job.uid, None)
        if new.state in api.FINISHED and old.state not in api.FINISHED:
            self._count("ddpjob_finished", where, new.state)
            spent = sum(_seconds(new, phase) for phase in _PHASES[1:])
            self._observe("ddpjob_run_seconds", spent, new.state)

    def forget(self, uid: str) -> None:
        """Take in that a job is gone."""
        self._left.pop(uid, None)

    def _count_time(self, namespace: str, old: Status, new: Status) -> None:
        for phase in _PHASES:
            seconds = _seconds(new, phase) - _seconds(old, phase)
            if phase == "productive":  # a counter never goes back
                seconds -= self._owed.pop(namespace, 0)
                if seconds < 0:
                    self._owed[namespace], seconds = -seconds, 0
            if seconds > 0:
                self._count("ddpjob_phase_seconds", namespace, phase, by=seconds)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def _observe(self, name: str, seconds: float, *labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(max(0.0, seconds))


def _gauge(name: str, values: Mapping[tuple[str, ...], float]) -> Family:
    metric = _TABLE[name]
    family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _seconds(status: Status, phase: str) -> int:
    return getattr(status.goodput, f"{phase}_seconds") or 0


def _named(reason: str) -> str:
    """Return the reason, if it is one of those that the API has: others are a kubelet's words."""
    return reason if reason in _REASONS else "Other"


_REASONS = frozenset((*api.REASONS, "Updated", "GroupResized", "Succeeded"))


def _word(truth: bool) -> str:
    return str(truth).lower()
