"""The operator's metrics: each one moves when its thing happens."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddpjob import __version__
from ddpjob.api import DDPJob
from ddpjob.controller.controller import Controller
from ddpjob.controller.queue import KeyedQueue
from ddpjob.metrics import METRICS, Metrics
from ddpjob.plan.model import PodRecord
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    decide,
    edited,
    failed,
    job,
    pod,
    reported,
    running,
    see,
    succeeded,
    summary,
    told,
    with_status,
)

BOTH = (running(0), running(1))
WHERE = "team"
Values = dict[tuple[str, frozenset[str]], float]


def _of(*labels: str) -> frozenset[str]:
    return frozenset(labels)


class Life:
    """A job whose statuses are stored, each told to the metrics."""

    def __init__(self, **spec: Any) -> None:
        self.metrics, ours = Metrics(), job(**spec)
        created = {"creation_timestamp": timestamp(NOW)}
        metadata = ours.metadata.model_copy(update=created)
        self.job = ours.model_copy(update={"metadata": metadata})
        queue = KeyedQueue[tuple[str, str]]()
        record = SimpleNamespace(namespace=WHERE, state="Running")
        found = SimpleNamespace(jobs={"digits": record}, leading=True, queue=queue)
        self.metrics.controller = cast(Controller, found)

    def write(self, *pods: PodRecord, now: float = NOW, **seen: Any) -> DDPJob:
        """Decide until nothing changes."""
        for _ in range(4):
            step = decide(self.job, see(*pods, **seen), now)
            if step.status == self.job.status:
                break
            self.metrics.wrote(self.job, step.status, now)
            self.job = with_status(self.job, step.status)
        return self.job

    def values(self) -> Values:
        """What a scrape finds, by name and labels' values; of a histogram its sum and count."""
        families = text_string_to_metric_families(self.metrics.page().decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for sample in samples
            if not sample.name.endswith("_bucket")
        }

    def start(self) -> None:
        """Have it train after 30 s in a queue and 10 of starting."""
        self.write(now=NOW + 30)
        self.write(pod(0), pod(1), now=NOW + 31)
        self.write(*BOTH, now=NOW + 40)
        assert self.job.status.state == "Running"


@pytest.fixture
def life() -> Life:
    ours = Life()
    ours.start()
    return ours


def test_a_start_has_its_times(life: Life) -> None:
    found = life.values()
    assert found["ddpjob_first_pods_seconds_sum", _of()] == 30
    assert found["ddpjob_start_seconds_sum", _of()] == 10
    assert found["ddpjob_phase_seconds_total", _of(WHERE, "queued")] == 30
    assert found["ddpjob_phase_seconds_total", _of(WHERE, "starting")] == 10


def test_a_restart_counts_with_its_reason_and_its_recovery(life: Life) -> None:
    life.write(*BOTH, now=NOW + 60, round_status=told(reported(1)))
    life.write(*BOTH, now=NOW + 61, round_status=told(round=1))
    assert (life.job.status.state, life.job.status.round) == ("Running", 1)
    found = life.values()
    assert found["ddpjob_restarts_total", _of(WHERE, "Exception", "true")] == 1
    assert found["ddpjob_failures_total", _of(WHERE, "Exception", "true")] == 1
    assert found["ddpjob_recovery_seconds_count", _of()] == 1
    lost = failed(1, summary(rank=1)), running(0)
    life.write(*lost, now=NOW + 90, round_status=told(round=1))
    found = life.values()
    assert life.job.status.attempt == 1
    assert found["ddpjob_restarts_total", _of(WHERE, "Exception", "false")] == 1


def test_an_end_counts_with_its_time_and_an_edit_is_no_failure(life: Life) -> None:
    life.job = edited(life.job, args=["other.py"])
    assert life.values()["ddpjob_finished_total", _of(WHERE, "Succeeded")] == 0, "so a rate sees it"
    life.write(succeeded(0), succeeded(1), now=NOW + 100)
    found = life.values()
    assert found["ddpjob_finished_total", _of(WHERE, "Succeeded")] == 1
    assert found["ddpjob_run_seconds_sum", _of("Succeeded")] == 70
    assert not any(name == "ddpjob_failures_total" for name, _ in found)


def test_what_proves_lost_later_is_no_productive_time(life: Life) -> None:
    old = life.job
    for productive, lost, wanted in ((100, 0, 100), (40, 60, 100), (90, 60, 100), (150, 60, 150)):
        update = {"productive_seconds": productive, "lost_seconds": lost}
        spent = life.job.status.goodput.model_copy(update=update)
        new = life.job.status.model_copy(update={"goodput": spent})
        life.metrics.wrote(life.job, new, NOW)
        life.job = with_status(old, new)
        assert life.values()["ddpjob_phase_seconds_total", _of(WHERE, "productive")] == wanted
    assert life.values()["ddpjob_phase_seconds_total", _of(WHERE, "lost")] == 60


def test_words_of_others_are_no_label(life: Life) -> None:
    failure = failed(1, summary(rank=1))
    life.write(running(0), failure, now=NOW + 60)
    assert life.job.status.failure is not None
    new = life.job.status.model_copy(
        update={"failure": life.job.status.failure.model_copy(update={"reason": "x" * 60})}
    )
    life.metrics.wrote(life.job, new, NOW)
    assert any("Other" in labels for _, labels in life.values())
    assert "x" * 60 not in life.metrics.page().decode()


async def test_the_operators_own_state_is_read_at_each_scrape(life: Life) -> None:
    controller = life.metrics.controller
    assert controller is not None
    controller.queue.add(("team", "digits"))
    life.metrics.requested("GET", "pods", 403, 0.2)
    life.metrics.reconciled("done", 0.01)
    found = life.values()
    assert found["ddpjob_build_info", _of(__version__)] == 1
    assert found["ddpjob_leader", _of()] == 1
    assert found["ddpjob_jobs", _of(WHERE, "Running")] == 1
    assert found["ddpjob_queue_depth", _of()] == 1
    assert 0 <= found["ddpjob_queue_oldest_seconds", _of()] < 60
    assert found["ddpjob_memory_peak_bytes", _of()] > 2**20
    assert found["ddpjob_api_requests_total", _of("GET", "pods", "403")] == 1
    assert found["ddpjob_api_request_seconds_sum", _of("GET", "pods")] == 0.2
    assert found["ddpjob_reconcile_seconds_count", _of("done")] == 1


def test_each_has_its_kind_and_its_words() -> None:
    life = Life()
    life.start()
    families = {f.name: f for f in text_string_to_metric_families(life.metrics.page().decode())}
    for metric in METRICS:
        family = families[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)


def test_a_job_that_is_gone_is_forgotten(life: Life) -> None:
    life.write(running(0), failed(1, summary(rank=1)), now=NOW + 60)
    assert life.metrics._left
    life.metrics.forget(life.job.uid)
    assert not life.metrics._left


def test_only_the_leader_tells_of_the_jobs(life: Life) -> None:
    assert life.metrics.controller is not None
    life.metrics.controller.leading = False
    assert ("ddpjob_jobs", _of(WHERE, "Running")) not in life.values()


def test_a_job_that_is_suspended_in_a_restart_recovers_from_nothing(life: Life) -> None:
    life.write(running(0), failed(1, summary(rank=1)), now=NOW + 60)
    life.job = edited(life.job, suspend=True)
    life.write(now=NOW + 61)
    assert life.job.status.state == "Suspended" and not life.metrics._left
