"""What `kubectl get` says of a job: why it is not simply running, and where to look."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob, Status, Summary
from ddpjob.plan.columns import with_columns, words_of_failure
from ddpjob.plan.model import PodRecord
from ddpjob.plan.reasons import UNSCHEDULABLE
from ddpjob.plan.status import with_condition
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    decide,
    edited,
    failed,
    failure,
    job,
    pod,
    reported,
    running,
    see,
    started,
    succeeded,
    summary,
    told,
    whole,
    with_status,
    write,
)


def slow(rank: int, reason: str, message: str) -> PodRecord:
    """A pod that its kubelet has had for a minute."""
    since = timestamp(NOW - 60)
    return pod(rank, node="gpu-3", reason=reason, message=message, started_at=since)


def shown(ours: DDPJob) -> tuple[str | None, str | None, str | None, str | None]:
    found = ours.status.summary
    return found.reason, found.pod, found.node, found.attempt


def on(node: str, pod: PodRecord) -> PodRecord:
    return replace(pod, node=node)


NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NO_HOST = (
    'failed to pull and unpack image "registry.team.example/vision/train:2": failed to resolve '
    'reference "registry.team.example/vision/train:2": failed to do request: Head '
    '"https://registry.team.example/v2/vision/train/manifests/2": dial tcp: lookup '
    "registry.team.example on 10.96.0.10:53: no such host"
)


def test_a_job_that_runs_has_no_reason_and_names_rank_0s_pod() -> None:
    ours = write(started(), on("gpu-1", running(0)), on("gpu-2", running(1)))
    assert shown(ours) == (None, "digits-0-0", "gpu-1", "0.0")
    done = write(ours, on("gpu-1", succeeded(0)), on("gpu-2", succeeded(1)))
    assert done.status.state == "Succeeded"
    assert shown(done) == (None, "digits-0-0", "gpu-1", "0.0")
    gone = write(write(ours, succeeded(0), running(1)), running(1))
    assert gone.status.state == "Running" and gone.status.summary.pod == "digits-0-0"


def test_a_new_job_and_one_that_starts_have_none() -> None:
    assert shown(write(job()))[0] is None
    starting = write(started(), pod(0), pod(1))
    assert starting.status.state == "Starting" and shown(starting)[0] is None


@pytest.mark.parametrize(
    ("waiting", "reason", "node"),
    [
        (pod(1, reason="Unschedulable", message=NO_ROOM), f"Unschedulable: {NO_ROOM}", None),
        (
            pod(1, node="gpu-3", reason="ErrImagePull", message=NO_HOST),
            "ErrImagePull: …dial tcp: lookup registry.team.example on 10.96.0.10:53: no such host",
            "gpu-3",
        ),
        (
            pod(1, node="gpu-3", reason="ErrImagePull", message="x" * 200 + "y"),
            "ErrImagePull: …" + "x" * 112 + "y",
            "gpu-3",
        ),
        (pod(1, reason="ImagePullBackOff"), "ImagePullBackOff: ImagePullBackOff", None),
        (slow(1, "Pulling", "image reg/x"), "Pulling: image reg/x, pod digits-0-1", "gpu-3"),
    ],
)
def test_a_pod_that_does_not_start_is_the_reason(
    waiting: PodRecord, reason: str, node: str | None
) -> None:
    ours = write(started(), running(0), waiting)
    assert ours.status.state == "Starting"
    assert shown(ours) == (reason, "digits-0-1", node, "0.0")
    again = write(ours, on("gpu-1", running(0)), on("gpu-3", running(1)))
    assert shown(again) == (None, "digits-0-0", "gpu-1", "0.0")


def test_a_restart_names_the_rank_that_failed_first() -> None:
    killed = failed(1, summary(reason="Signal", signal="SIGKILL", message="killed by SIGKILL"))
    ours = write(whole(**RECREATE), running(0), on("gpu-17", killed))
    why = "Signal r1 (digits-0-1 on gpu-17): killed by SIGKILL"
    assert shown(ours) == (why, "digits-0-1", "gpu-17", "1.0")
    assert shown(write(ours, pod(0, attempt=1), pod(1, attempt=1)))[0] == why
    stuck = pod(0, attempt=1, reason="Unschedulable", message=NO_ROOM)
    stays = write(ours, stuck, pod(1, attempt=1))
    assert shown(stays) == (f"Unschedulable: {NO_ROOM}", "digits-1-0", None, "1.0")
    again = write(stays, running(0, attempt=1), running(1, attempt=1))
    assert shown(again) == (None, "digits-1-0", "node-1", "1.0")


def test_a_restart_in_place_does_too() -> None:
    pods = (running(0), running(1))
    ours = write(whole(), *pods, round_status=told(reported(1)))
    why = "Exception r1 (digits-0-1 on node-1): ValueError: boom"
    assert shown(ours) == (why, "digits-0-1", "node-1", "0.1")
    assert shown(write(ours, *pods, round_status=told(round=1))) == (
        None,
        "digits-0-0",
        "node-1",
        "0.1",
    )


def test_a_restart_without_a_failure_has_the_words_of_its_condition() -> None:
    ours = write(whole(), running(0), failed(1))
    ours = write(ours, replace(pod(0, attempt=1), spec_hash="old"))
    assert ours.status.attempt == 2 and ours.status.failure is not None
    reason, name, *_ = shown(ours)
    assert reason == "SpecChanged: the job was edited while its pods were being created"
    assert name is None, "and no pod of the attempt before"


@pytest.mark.parametrize(
    ("policy", "message", "reason"),
    [
        (
            {"maxRestarts": 0},
            summary(),
            "MaxRestartsExceeded: Exception r1 (digits-0-1): ValueError: boom",
        ),
        (
            {},
            summary(reason="LaunchFailed", message="no such file: train.py"),
            "LaunchFailed r1 (digits-0-1): no such file: train.py",
        ),
    ],
)
def test_a_failed_job_says_why_it_has_ended_and_who_failed_first(
    policy: dict[str, Any], message: str, reason: str
) -> None:
    ours = write(started(failurePolicy=policy), running(0), failed(1, message))
    assert ours.status.state == "Failed"
    assert shown(ours)[:2] == (reason, "digits-0-1")


def test_a_deadline_is_the_reason_and_not_a_failure_of_long_ago() -> None:
    ours = write(whole(activeDeadlineSeconds=60), running(0), failed(1))
    ours = write(ours, running(0, attempt=1), running(1, attempt=1))
    late = write(ours, running(0, attempt=1), running(1, attempt=1), now=NOW + 100)
    assert late.status.state == "Failed" and late.status.failure is not None
    why = "DeadlineExceeded: active for longer than activeDeadlineSeconds, 60"
    assert shown(late)[:2] == (why, "digits-1-0")


def test_a_suspended_job_says_so_by_its_state() -> None:
    leaving = write(edited(whole(), suspend=True), running(0), running(1))
    assert (shown(leaving)[0] or "").startswith("Suspending: spec.suspend is true")
    assert leaving.status.state != "Suspended"
    over = write(leaving)
    assert over.status.state == "Suspended" and shown(over) == (None, None, None, "1.0")


HOSTILE = "\x1b[2J\u202e\nNAME STATE\n" + "x" * 5000


def test_whatever_is_quoted_the_reason_is_one_short_line() -> None:
    ends = (
        failed(1, summary(message=HOSTILE[:4000], reason=HOSTILE[:60])),
        failed(1, HOSTILE, reason=HOSTILE),
        pod(1, reason="Unschedulable", message=HOSTILE),
        pod(1, reason=HOSTILE, message=HOSTILE, node=HOSTILE[:253]),
        slow(1, "Pulling", HOSTILE),
    )
    for end in ends:
        for policy in ({}, {"maxRestarts": 0}):
            found = write(started(failurePolicy=policy), running(0), end).status.summary
            assert found.reason and len(found.reason) <= 128
            assert found.reason.isprintable(), found.reason
            assert len(found.node or "") <= 253 and (found.node or "").isprintable()


def test_names_that_leave_no_room_for_the_message_are_left_out() -> None:
    long = failure(rank=3, pod="p" * 60, node="n" * 60)
    assert words_of_failure(long) == "Exception r3: ValueError: boom"
    assert words_of_failure(failure(rank=3, pod="p", node=None)).startswith("Exception r3 (p): ")
    assert words_of_failure(failure(rank=None, pod=None, message="")) == "Exception"


def test_what_somebody_wrote_into_a_status_stops_no_decision() -> None:
    odd = {"attempt": 0, "reason": "R\n" * 500, "pod": "p\n" * 126, "node": "\x1b" * 253}
    ended = {"attempt": 0, "endTime": "2027-01-15T08:00:00Z", "reason": odd["reason"]}
    state = {"state": "Restarting", "failure": odd, "history": [{**ended, "pod": odd["pod"]}]}
    garbled = job(status={**state, "summary": {"reason": HOSTILE, "pod": HOSTILE}})
    found = decide(garbled, see(running(0), running(1)), NOW).status
    Status.model_validate(found.to_json())


def test_the_wide_columns_alone_are_no_reason_for_a_write() -> None:
    """A node becomes known after its pod's creation, and an earlier version wrote no columns."""
    ours = write(started(), pod(0), pod(1))
    assert decide(ours, see(on("gpu-1", pod(0)), pod(1)), NOW).status == ours.status
    bare = ours.status.model_copy(update={"summary": Summary(nodes="0/2")})
    assert decide(with_status(ours, bare), see(pod(0), pod(1)), NOW).status == bare
    more = decide(with_status(ours, bare), see(on("gpu-1", running(0)), pod(1)), NOW).status
    assert (more.summary.pod, more.summary.node, more.summary.attempt) == (
        "digits-0-0",
        "gpu-1",
        "0.0",
    )


def test_a_finished_job_keeps_its_words_though_only_a_part_of_it_is_known() -> None:
    """The cache has neither the failure nor the conditions' messages of a finished job."""
    ours = write(started(failurePolicy={"maxRestarts": 0}), running(0), failed(1, summary()))
    part = ours.status.model_copy(
        update={
            "failure": None,
            "history": [],
            "conditions": [c.model_copy(update={"message": ""}) for c in ours.status.conditions],
        }
    )
    assert decide(with_status(ours, part), see(), NOW).status == part


def test_words_that_only_look_like_a_pods_name_stay() -> None:
    for message, found in (
        ("pod digits-0-1: no room", "no room"),
        ("pod digits-0-1", "pod digits-0-1"),
        ("pod of a quota: b", "pod of a quota: b"),
        ("0/3 nodes: none", "0/3 nodes: none"),
    ):
        status = with_condition(Status(state="Starting"), UNSCHEDULABLE, message, now=NOW)
        said = with_columns(Status(), status, (), NOW).summary.reason
        assert said == f"Unschedulable: {found}"
