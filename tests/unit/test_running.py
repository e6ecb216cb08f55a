"""What the status says of pods that start and run."""

from ddpjob.api import DDPJob
from ddpjob.errors import Refused
from ddpjob.plan.model import PodRecord
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    condition,
    decide,
    edited,
    failed,
    job,
    pod,
    reported,
    reports,
    running,
    see,
    started,
    succeeded,
    summary,
    told,
    whole,
    write,
)


def test_a_finished_rank_counts_as_running_for_the_group() -> None:
    assert decide(started(), see(succeeded(0), running(1)), NOW).status.state == "Running"


def test_the_reason_why_a_pod_waits_leaves_the_status_once_it_does_not() -> None:
    def said(job: DDPJob) -> tuple[str, str, str]:
        found = job.status.condition("Running")
        assert found is not None
        return (found.status, found.reason, found.message)

    ours = write(write(job()), pod(0), pod(1))
    stuck = pod(1, reason="Unschedulable", message="0/4 nodes are available")
    waiting = write(ours, pod(0), stuck)
    assert said(waiting) == ("False", "Unschedulable", f"pod {stuck.name}: {stuck.message}")
    assert said(write(waiting, pod(0), pod(1))) == ("False", "Starting", "pods are being created")
    again = write(started(running(0), running(1)), failed(0), running(1))
    why = said(again)
    assert said(write(again, pod(0, attempt=1), pod(1, attempt=1))) == why
    refused = write(write(job()), pod(0), create_error=Refused(403, "Forbidden", "exceeded quota"))
    assert said(refused)[1] == "CreateRefused"
    assert said(write(refused, pod(0), pod(1)))[1] == "Starting"


def test_a_pull_that_takes_long_is_told_with_its_image_and_pod() -> None:
    def pulls(rank: int, since: float) -> PodRecord:
        start = timestamp(NOW - since)
        return pod(rank, node="n", reason="Pulling", message="image reg/x", started_at=start)

    ours = write(started(), pod(0), pod(1))
    step = decide(ours, see(pulls(0, 4), pulls(1, 3)), NOW)
    assert step.status == ours.status and step.requeue_after == 6, "nor is anything written for it"
    waiting = write(ours, pulls(0, 4), pulls(1, 12))
    found = waiting.status.condition("Running")
    assert found and (found.status, found.reason) == ("False", "Pulling")
    assert found.message == "image reg/x, pod digits-0-1"
    stuck = pod(0, reason="Unschedulable", message="none")
    assert condition(write(waiting, stuck, pulls(1, 99)).status, "Running") == (
        "False",
        "Unschedulable",
    )
    assert write(waiting, running(0), running(1)).status.state == "Running"
    again = write(waiting, running(0), pulls(1, 1))
    assert condition(again.status, "Running") == ("False", "Starting")


def test_the_condition_stalled_follows_reports_and_hangs() -> None:
    limited = started(running(0), running(1), hangTimeoutSeconds=60, **RECREATE)
    ours = write(limited, running(0), running(1))
    assert condition(ours.status, "Stalled") == ("Unknown", "NoStep")
    ours = write(ours, running(0), running(1), report=reports(5))
    assert condition(ours.status, "Stalled") == ("False", "Progress")
    message = summary(reason="Hang", rank=1, exit_code=None, message="no new step for 60 s")
    hung = failed(1, message, exit_code=76)
    ours = write(ours, running(0), hung)
    assert condition(ours.status, "Stalled") == ("True", "Hang")
    assert ours.status.state == "Restarting" and ours.status.budget.charged == 1
    assert ours.status.failure and ours.status.failure.reason == "Hang"
    again = write(ours, running(0, attempt=1), running(1, attempt=1))
    assert condition(again.status, "Stalled") == ("Unknown", "NoStep"), "not yet known to be over"
    failing = write(
        started(running(0), running(1), hangTimeoutSeconds=60, failurePolicy={"maxRestarts": 0}),
        running(0),
        hung,
    )
    assert failing.status.state == "Failed"
    assert condition(failing.status, "Stalled") == ("True", "Hang")


def test_without_a_hang_timeout_there_is_no_condition_stalled() -> None:
    ours = write(started(running(0), running(1)), running(0), running(1))
    assert ours.status.condition("Stalled") is None


def test_a_condition_does_not_outlive_the_field_that_it_is_about() -> None:
    limited = started(running(0), running(1), hangTimeoutSeconds=60, **RECREATE)
    hung = failed(1, summary(reason="Hang", exit_code=None), exit_code=76)
    ours = write(limited, running(0), hung)
    assert condition(ours.status, "Stalled") == ("True", "Hang")
    pods = (running(0, attempt=1), running(1, attempt=1))
    ours = write(edited(ours, hang_timeout_seconds=0), *pods)
    assert condition(ours.status, "Stalled") == ("False", "NotWatched")
    absent = write(job(launcher="none"))
    assert condition(absent.status, "AgentAbsent") == ("True", "LauncherNone")
    ours = write(edited(absent, launcher="torchrun"), running(0), running(1))
    assert condition(ours.status, "AgentAbsent") == ("False", "AgentRuns")


def test_in_a_later_round_running_pods_alone_do_not_make_the_job_running() -> None:
    pods = (running(0), running(1))
    ours = write(whole(), *pods, round_status=told(reported(1)))
    why = ours.status.condition("Running")
    assert why and why.reason == "Exception"
    stuck = write(ours, running(0), pod(1, reason="ErrImagePull", message="not found"))
    assert stuck.status.state == "Restarting" and stuck.status.condition("Running") == why
    part = write(stuck, running(0), pod(1), round_status=told(round=1))
    assert part.status.state == "Restarting", "not all pods run"
    assert write(part, *pods, round_status=told(round=1)).status.state == "Running"


def test_a_pod_that_ended_well_with_a_round_says_that_the_round_ran() -> None:
    ours = write(whole(), running(0), running(1), round_status=told(reported(1)))

    def beside(ended: int) -> str | None:
        done = succeeded(0, message=summary(reason="Completed", exit_code=0, round=ended))
        return write(ours, done, running(1)).status.state

    assert (beside(1), beside(0)) == ("Running", "Restarting")
