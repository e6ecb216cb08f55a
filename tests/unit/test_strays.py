"""Pods that are not the job's own, and would be in its way."""

from dataclasses import replace

from ddpjob.plan.cleanup import SPARED_SECONDS, UNBEGUN_SECONDS
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    STARTED,
    STRANGERS,
    decide,
    deleted,
    job,
    pod,
    running,
    see,
    started,
    succeeded,
    with_status,
    write,
)


def test_a_pod_of_a_rank_that_the_job_has_not_is_deleted_and_counts_for_nothing() -> None:
    stray = succeeded(7)
    ours = write(started(), running(0), running(1))
    step = decide(ours, see(succeeded(0), running(1), stray), NOW)
    assert deleted(step) == {"digits-0-7"}
    going = replace(stray, deleting=True, deletion_deadline=timestamp(NOW + 5), started_at=STARTED)
    step = decide(ours, see(succeeded(0), running(1), going), NOW)
    assert step.status.state == "Running" and step.status.succeeded_ranks == "0"
    assert not step.delete and step.status.nodes.running == 1


def test_a_stray_that_cannot_be_deleted_stops_nothing() -> None:
    ours = write(started(), running(0), running(1))
    stray = running(7, uid="theirs")
    step = decide(ours, see(succeeded(0), succeeded(1), stray), NOW)
    assert step.status.state == "Succeeded"
    step = decide(ours, see(running(0), running(1), stray), NOW)
    assert [(d.pod.uid, d.stray) for d in step.delete] == [("theirs", True)]
    spared = frozenset({"theirs"})
    step = decide(ours, see(running(0), running(1), stray, spared=spared), NOW)
    assert not step.delete and step.requeue_after == SPARED_SECONDS, "nothing else brings it back"


def test_a_pod_of_an_attempt_that_was_never_begun_stops_nothing_but_a_start() -> None:
    ours = write(started(), running(0), running(1))
    theirs = running(0, attempt=1, uid="x", created_at="2027-01-15T07:59:50Z")
    seen = see(succeeded(0), succeeded(1), theirs, confirmed=False, strays=frozenset({"x"}))
    assert decide(ours, seen, NOW).status.state == "Succeeded"
    suspended = job(suspend=True, status=ours.status.to_json())
    assert decide(suspended, see(running(0), running(1), theirs), NOW).status.attempt == 1
    waiting = write(job())
    step = decide(waiting, see(theirs), NOW)
    assert not step.create and step.requeue_after == UNBEGUN_SECONDS - 10
    told = step.status.condition("Accepted")
    assert told and (told.status, told.reason) == ("False", "NameTaken")
    assert told.message == (
        "pod digits-1-0 is of an attempt that this job has not begun, and is deleted "
        "once it is 60 s old"
    )
    told_so = with_status(waiting, step.status)
    accepted = write(told_so, pod(0), pod(1)).status.condition("Accepted")
    assert accepted and accepted.status == "True"
    held = running(0, attempt=1, uid="x", deleting=True, forced=True)
    assert decide(waiting, see(held), NOW).create == (0, 1)


def test_pods_of_an_attempt_that_was_never_begun_are_deleted_in_the_end() -> None:
    put_back = started(running(0), running(1))
    ahead = running(0, attempt=1, created_at="2027-01-15T07:00:00Z")
    step = decide(put_back, see(running(0), running(1), ahead), NOW)
    assert [d.pod.name for d in step.delete] == ["digits-1-0"] and step.status == put_back.status
    going = running(0, attempt=1, deleting=True, deletion_deadline="2027-01-15T08:00:05Z")
    step = decide(put_back, see(running(0), running(1), going), NOW)
    assert step.status.state == "Running" and not step.delete


def test_a_finalizer_that_keeps_a_stray_is_named() -> None:
    """It has the name of the job's own pod, and was deleted by force without effect."""
    kept = running(0, root=STRANGERS, uid="theirs", deleting=True, forced=True)
    accepted = decide(write(job()), see(kept), NOW).status.condition("Accepted")
    assert accepted and accepted.reason == "NameTaken"
    assert accepted.message.endswith("; a finalizer of somebody else's keeps it")
