import math
from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob
from ddpjob.errors import Refused
from ddpjob.plan.cleanup import FENCE_SECONDS, SURVIVOR_GRACE
from ddpjob.plan.goodput import active_seconds
from ddpjob.plan.observed import OVERDUE_SECONDS, PodRecord, Report, pod_record
from ddpjob.times import timestamp
from tests.builders import (
    IDENTITY,
    NOW,
    decide,
    failed,
    job,
    pod,
    running,
    succeeded,
    summary,
    with_status,
)
from tests.unit.test_budget import in_attempt, reports
from tests.unit.test_decide import condition, ranks, see, started, write

STARTED = "2027-01-15T07:55:00Z"  # 300 s before NOW


# hangTimeoutSeconds


def test_stalled_says_what_is_known_of_hangs() -> None:
    ours = write(started(running(0), running(1), hangTimeoutSeconds=60), running(0), running(1))
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


def test_without_a_limit_there_is_nothing_to_say_of_hangs() -> None:
    ours = write(started(running(0), running(1)), running(0), running(1))
    assert ours.status.condition("Stalled") is None


# Events


def test_a_loss_that_is_no_number_is_told_once() -> None:
    ours = write(started(running(0), running(1)), running(0), running(1), report=loss(0.5))
    step = decide(ours, see(running(0), running(1), report=loss(math.nan)), NOW)
    assert [(note.reason, note.warning) for note in step.events] == [("LossNotFinite", True)]
    told = with_status(ours, step.status)
    assert told.status.progress and told.status.progress.loss == "nan"
    assert decide(told, see(running(0), running(1), report=loss(math.inf)), NOW).events == ()
    assert decide(told, see(running(0), running(1), report=loss(0.4)), NOW).events == ()


def loss(value: float) -> Report:
    return Report(attempt=0, step=5, source="file", loss=value)


# managedBy, successPolicy, ttlSecondsAfterFinished


def test_somebody_elses_job_is_left_alone() -> None:
    theirs = job(managedBy="kueue.x-k8s.io/multikueue")
    step = decide(theirs, see(running(0)), NOW)
    assert (step.status, step.create, step.prepare, step.delete) == (theirs.status, (), False, ())
    assert decide(job(managedBy="ddpjob.dev/operator"), see(), NOW).status.state == "Starting"


def test_with_rank0_the_job_succeeds_with_its_first_node() -> None:
    ours = started(running(0), running(1), successPolicy="Rank0")
    assert decide(ours, see(running(0), succeeded(1)), NOW).status.state == "Running"
    done = write(ours, succeeded(0), running(1))
    assert done.status.state == "Succeeded"
    assert condition(done.status, "Complete") == ("True", "Rank0Succeeded")
    assert done.status.nodes.running == 0
    assert ranks(decide(done, see(succeeded(0), running(1)), NOW)) == {"digits-0-1"}


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    done = write(started(ttlSecondsAfterFinished=60), succeeded(0), succeeded(1))
    step = decide(done, see(succeeded(0), succeeded(1)), NOW + 20)
    assert not step.delete_job and step.requeue_after == pytest.approx(40)
    assert decide(done, see(), NOW + 60).delete_job
    assert not decide(write(started(), succeeded(0), succeeded(1)), see(), NOW + 1e9).delete_job


@pytest.mark.parametrize(
    ("policy", "gone"),
    [("None", set()), ("Running", {"digits-0-1"}), ("All", {"digits-0-0", "digits-0-1"})],
)
def test_the_policy_says_which_pods_of_a_finished_job_go(policy: str, gone: set[str]) -> None:
    pods = (succeeded(0), running(1))
    done = write(started(*pods, cleanPodPolicy=policy, successPolicy="Rank0"), *pods)
    assert done.status.state == "Succeeded"
    assert ranks(decide(done, see(*pods), NOW)) == gone
    failing = (failed(0), running(1))
    over = started(running(0), running(1), cleanPodPolicy=policy, failurePolicy={"maxRestarts": 0})
    over = write(over, *failing)
    assert over.status.state == "Failed" and ranks(decide(over, see(*failing), NOW)) == gone


# activeDeadlineSeconds


def long_running(**spec: Any) -> DDPJob:
    """A job that has run since STARTED."""
    ours = started(running(0), running(1), **spec)
    goodput = ours.status.goodput.model_copy(update={"since": STARTED})
    return with_status(
        ours, ours.status.model_copy(update={"state": "Running", "goodput": goodput})
    )


def test_the_deadline_ends_pods_by_their_kubelets_and_deletes_none_with_a_log() -> None:
    ours = long_running(activeDeadlineSeconds=300)
    pods = (running(0, started_at=STARTED), pod(1))
    late = write(ours, *pods)
    assert late.status.state == "Failed"
    assert condition(late.status, "Failed") == ("True", "DeadlineExceeded")
    assert late.status.restarts == 0 and late.status.history[-1].reason == "DeadlineExceeded"
    step = decide(late, see(*pods), NOW)
    assert [p.name for p in step.expire] == ["digits-0-0"] and ranks(step) == {"digits-0-1"}
    asked = running(0, started_at=STARTED, deadline_seconds=300)
    assert decide(late, see(asked), NOW).expire == () and not decide(late, see(asked), NOW).delete
    over = failed(0, started_at=STARTED, deadline_seconds=300)
    assert not decide(late, see(over), NOW).delete
    bound = pod(1, node="node-2")  # it may have started meanwhile
    step = decide(late, see(bound), NOW)
    assert [p.name for p in step.expire] == ["digits-0-1"] and not step.delete


def test_before_the_deadline_there_is_a_look_at_it() -> None:
    step = decide(long_running(activeDeadlineSeconds=310), see(running(0), running(1)), NOW)
    assert step.status.state == "Running" and step.requeue_after == pytest.approx(10)


def test_suspended_time_does_not_count() -> None:
    ours = long_running(activeDeadlineSeconds=400, suspend=True)
    suspended = write(write(ours, running(0), running(1)))
    assert suspended.status.state == "Suspended"
    assert active_seconds(suspended.status, NOW + 5000) == 300
    spec = suspended.spec.model_copy(update={"suspend": False})
    resumed = suspended.model_copy(update={"spec": spec})
    again = write(resumed, now=NOW + 5000)
    assert again.status.state == "Starting" and active_seconds(again.status, NOW + 5050) == 350
    pods = (running(0, attempt=1), running(1, attempt=1))
    assert write(again, *pods, now=NOW + 5099).status.state == "Running"
    assert write(again, *pods, now=NOW + 5100).status.state == "Failed"


# Lost nodes, and how long survivors have


def unreachable(rank: int, since: str = "2027-01-15T07:59:55Z", **fields: Any) -> PodRecord:
    """A pod whose node was given up 5 s before NOW, and which Kubernetes deletes therefore."""
    values = {"deleting": True, "disruption": "NodeLost", "unreachable_since": since, **fields}
    return running(rank, **values)


def test_pods_of_a_lost_node_are_deleted_by_force_after_the_fence() -> None:
    ours = write(started(running(0), running(1)), running(0), unreachable(1))
    assert ours.status.failure and ours.status.failure.reason == "NodeLost"
    assert (ours.status.attempt, ours.status.budget.charged) == (1, 0)
    step = decide(ours, see(running(0), unreachable(1)), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, SURVIVOR_GRACE)]
    assert step.requeue_after == pytest.approx(FENCE_SECONDS - 5) and not step.create
    step = decide(ours, see(unreachable(1)), NOW + 5)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(1, 0)] and not step.create
    assert decide(ours, see(), NOW + 5).create == (0, 1)


def test_a_pod_that_no_kubelet_has_taken_is_deleted_by_force_and_waited_for_no_longer() -> None:
    """On a node that is not there, or held by somebody's finalizer."""
    ours = write(started(), failed(0, summary()), pod(1))
    assert ours.status.attempt == 1
    going: dict[str, Any] = {
        "deleting": True,
        "deletion_deadline": timestamp(NOW + 5),
        "node": "nowhere",
    }
    step = decide(ours, see(failed(0), pod(1, **going)), NOW)
    assert not step.delete and not step.create and step.requeue_after == 5 + OVERDUE_SECONDS
    later = NOW + 5 + OVERDUE_SECONDS
    step = decide(ours, see(failed(0), pod(1, **going)), later)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(1, 0)] and not step.create
    held = pod(1, **{**going, "forced": True})
    step = decide(ours, see(failed(0), held), later)
    assert step.create == (0, 1) and not step.delete
    started_there = pod(1, **going, started_at=timestamp(NOW))
    step = decide(ours, see(failed(0), started_there), later + 1000)
    assert not step.create and not step.delete, "its kubelet is to say when it has ended"


def test_a_pod_that_is_only_unreachable_is_waited_for() -> None:
    quiet = unreachable(1, deleting=False, disruption="")
    step = decide(started(running(0), running(1)), see(running(0), quiet), NOW + 100)
    assert step.status.attempt == 0 and not step.delete


def test_survivors_of_an_eviction_may_save_and_those_of_a_failure_need_not() -> None:
    evicted = running(1, deleting=True, disruption="Evicted")
    ours = write(started(running(0), running(1)), running(0), evicted)
    step = decide(ours, see(running(0), evicted), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, None)]
    gone = decide(ours, see(running(0)), NOW)
    assert [d.grace_seconds for d in gone.delete] == [SURVIVOR_GRACE]
    ours = write(started(running(0), running(1)), running(0), failed(1))
    step = decide(ours, see(running(0), failed(1)), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, SURVIVOR_GRACE)]


@pytest.mark.parametrize(
    ("conditions", "reason", "disruption", "unreachable_since"),
    [
        ([], "", "", None),
        ([("DisruptionTarget", "True", "PreemptionByScheduler")], "", "Preempted", None),
        ([("DisruptionTarget", "True", "EvictionByEvictionAPI")], "", "Evicted", None),
        ([("DisruptionTarget", "True", "TerminationByKubelet")], "Evicted", "Evicted", None),
        ([("DisruptionTarget", "True", "DeletionByTaintManager")], "", "NodeLost", None),
        ([("DisruptionTarget", "False", "PreemptionByScheduler")], "", "", None),
        ([], "Evicted", "Evicted", None),
        ([], "OutOfcpu", "NodeRefused", None),
        ([], "UnexpectedAdmissionError", "NodeRefused", None),
        ([("Ready", "False", ""), ("ContainersReady", "True", "")], "", "", STARTED),
        ([("Ready", "False", ""), ("ContainersReady", "False", "")], "", "", None),
        ([("Ready", "True", ""), ("ContainersReady", "True", "")], "", "", None),
    ],
)
def test_what_kubernetes_did_to_a_pod_stands_in_its_conditions(
    conditions: list[tuple[str, str, str]], reason: str, disruption: str, unreachable_since: str
) -> None:
    status = {
        "reason": reason,
        "conditions": [
            {"type": kind, "status": value, "reason": why, "lastTransitionTime": STARTED}
            for kind, value, why in conditions
        ],
    }
    record = pod_record({"metadata": IDENTITY, "status": status})
    assert record and record.disruption == disruption
    assert record.unreachable_since == unreachable_since


def record_of(status: dict[str, Any], **metadata: Any) -> PodRecord:
    found = pod_record({"metadata": {**IDENTITY, **metadata}, "status": status})
    assert found is not None
    return found


def test_a_lost_pod_that_was_never_ready_is_fenced_once_its_kubelet_is_overdue() -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    containers = {"type": "ContainersReady", "status": "False"}
    status = {"phase": "Pending", "conditions": [lost, ready, containers]}
    assert record_of(status).unreachable_since is None
    late = record_of(status, deletionTimestamp="2027-01-15T08:00:00Z")
    assert late.unreachable_since == "2027-01-15T08:00:20Z" and late.disruption == "NodeLost"
    by_hand = {"phase": "Pending", "conditions": [ready, containers]}
    assert record_of(by_hand, deletionTimestamp="2027-01-15T08:00:00Z").unreachable_since is None


def test_a_pod_that_waits_at_a_readiness_gate_is_on_no_lost_node() -> None:
    gate = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}
    ready = {"type": "ContainersReady", "status": "True"}
    conditions = [{**gate, "lastTransitionTime": STARTED}, ready]
    assert record_of({"conditions": conditions}).unreachable_since is None


def test_an_init_container_that_cannot_be_pulled_keeps_its_pod_from_starting() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [
            {"name": "first", "state": {"terminated": {"exitCode": 0}}},
            {"name": "fetch", "state": {"waiting": waiting}},
        ],
        "containerStatuses": [
            {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    record = record_of(status)
    assert (record.reason, record.message) == ("ImagePullBackOff", "not found")


@pytest.mark.parametrize(("reason", "result"), [("", "succeeded"), ("Evicted", "failed")])
def test_a_sidecars_failure_is_not_the_trainers(reason: str, result: str) -> None:
    ends = {"trainer": 0, "sidecar": 1}
    containers = [
        {"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in ends.items()
    ]
    status = {"phase": "Failed", "reason": reason, "containerStatuses": containers}
    assert record_of(status).result == result


@pytest.mark.parametrize(
    "reason", ["TopologyAffinityError", "OutOfcpu", "NodeShutdown", "TaintToleration"]
)
def test_what_a_kubelet_does_not_admit_is_no_failure_of_the_training(reason: str) -> None:
    assert record_of({"phase": "Failed", "reason": reason}).disruption == "NodeRefused"


def test_beside_an_eviction_a_pod_without_an_agent_has_failed_because_of_it() -> None:
    ours = started(running(0), running(1))
    evicted = running(0, deleting=True, disruption="Evicted")
    status = decide(ours, see(evicted, failed(1)), NOW).status
    assert status.failure and status.failure.reason == "Evicted" and status.budget.charged == 0
    status = decide(ours, see(evicted, failed(1, summary())), NOW).status
    assert status.failure and status.failure.reason == "Exception" and status.budget.charged == 1
    status = decide(ours, see(running(0, deleting=True), failed(1)), NOW).status
    assert status.failure and status.failure.reason == "Error" and status.budget.charged == 1


def test_an_evicted_pods_own_words_do_not_hide_the_eviction() -> None:
    saved = summary(reason="Preempted", exit_code=75, message="saved and stopped (exit code 75)")
    ours = write(started(), failed(0, saved), running(1))
    assert ours.status.failure and ours.status.failure.reason == "Preempted"
    assert (ours.status.budget.charged, ours.status.attempt) == (0, 1)
    ours = write(started(), failed(0, saved, disruption="Evicted"), running(1))
    assert ours.status.failure and ours.status.failure.reason == "Evicted"
    assert ours.status.failure.exit_code == 75


# startupDeadlineSeconds


def waiting_job(*pods: PodRecord) -> DDPJob:
    ours = write(job(startupDeadlineSeconds=60, nnodes=2))
    return write(ours, *pods)


def test_a_group_that_is_scheduled_in_part_is_released_and_tried_again_later() -> None:
    words = "0/3 nodes are available: 3 Insufficient cpu."
    stuck = pod(1, reason="Unschedulable", message=words)
    ours = waiting_job(running(0), stuck)
    step = decide(ours, see(running(0), stuck), NOW + 59)
    assert step.status.attempt == 0 and step.requeue_after == pytest.approx(1)
    late = write(ours, running(0), stuck, now=NOW + 60)
    found = late.status.failure
    assert found and found.reason == "StartupDeadlineExceeded" and words in found.message
    assert (late.status.attempt, late.status.budget.charged) == (1, 0)
    step = decide(late, see(running(0), stuck), NOW + 60)
    assert ranks(step) == {"digits-0-0", "digits-0-1"} and not step.create
    assert decide(late, see(), NOW + 69).requeue_after == pytest.approx(1)
    assert decide(late, see(), NOW + 70).create == (0, 1)


def test_the_time_to_start_counts_from_each_attempts_own_beginning() -> None:
    policy = {"backoffSeconds": {"first": 0}}
    ours = write(write(job(startupDeadlineSeconds=60, failurePolicy=policy)))
    stuck, now = pod(1, reason="Unschedulable", message="none"), NOW + 60
    for attempt in (1, 2, 3):
        ours = write(ours, replace(stuck, attempt=attempt - 1), now=now)
        assert ours.status.attempt == attempt
        assert decide(ours, see(), now + 2).create == (0, 1), "not at once again"
        waiting = replace(stuck, attempt=attempt)
        step = decide(ours, see(pod(0, attempt=attempt), waiting), now + 59)
        assert step.status.attempt == attempt
        now += 62


def test_the_time_to_start_begins_when_the_old_pods_are_gone() -> None:
    ours = started(running(0), running(1), startupDeadlineSeconds=60)
    leaving = (running(0), running(1, deleting=True, disruption="Evicted"))
    ours = write(ours, *leaving)
    assert ours.status.attempt == 1
    assert decide(ours, see(*leaving), NOW + 200).status.attempt == 1
    step = decide(ours, see(), NOW + 201)
    assert step.create == (0, 1) and step.status.attempt == 1
    first, last = timestamp(NOW + 201), timestamp(NOW + 202)
    stuck = (
        pod(0, attempt=1, created_at=last),
        pod(1, attempt=1, reason="Unschedulable", created_at=first),
    )
    assert decide(ours, see(*stuck), NOW + 261).status.attempt == 1
    assert decide(ours, see(*stuck), NOW + 262).status.attempt == 2


def test_the_time_to_start_is_not_spent_while_no_operator_is_there() -> None:
    ours = write(started(running(0), running(1), startupDeadlineSeconds=60), failed(0), running(1))
    back = decide(ours, see(), NOW + 7200)
    assert back.create == (0, 1) and back.status.attempt == 1 and back.status.failure
    assert back.status.failure.reason == "Error", "the first cause is kept"
    refused = Refused(403, "Forbidden", "exceeded quota")
    early = decide(ours, see(create_error=refused, refused_seconds=59), NOW + 7200)
    assert early.status.attempt == 1
    late = decide(ours, see(create_error=refused, refused_seconds=60), NOW + 7200).status
    assert late.attempt == 2 and late.failure and "exceeded quota" in late.failure.message


def test_a_pod_without_its_volumes_or_network_has_not_begun_its_pull() -> None:
    ours = started(running(0), pod(1), startupDeadlineSeconds=60)
    waiting = pod(1, node="node-2", reason="ContainerCreating")
    assert decide(ours, see(running(0), waiting), NOW + 600).status.attempt == 0, "a pull goes on"
    late = decide(ours, see(running(0), replace(waiting, without_sandbox=True)), NOW + 600).status
    assert late.failure and late.failure.reason == "StartupDeadlineExceeded"
    assert late.failure.pod == "digits-0-1" and "volumes or its network" in late.failure.message
    for value, bare in (("False", True), ("True", False)):
        said = {"type": "PodReadyToStartContainers", "status": value}
        assert record_of({"phase": "Pending", "conditions": [said]}).without_sandbox is bare
    assert not record_of({"phase": "Pending"}).without_sandbox


def test_a_pull_that_goes_on_is_waited_for_and_one_that_fails_is_not() -> None:
    pulling = pod(1, node="node-1", reason="ContainerCreating")
    ours = waiting_job(running(0), pulling)
    assert decide(ours, see(running(0), pulling), NOW + 600).status.attempt == 0
    failing = replace(pulling, reason="ImagePullBackOff", message="not found")
    assert decide(ours, see(running(0), failing), NOW + 600).status.attempt == 1


def test_a_quota_that_lets_only_some_pods_in_releases_them() -> None:
    ours = waiting_job(running(0))
    assert decide(ours, see(running(0)), NOW + 60).status.attempt == 1


# Where the time went


def test_time_is_booked_when_a_state_ends() -> None:
    new = job()
    metadata = new.metadata.model_copy(update={"creation_timestamp": STARTED})
    ours = write(new.model_copy(update={"metadata": metadata}))
    assert ours.status.goodput.queued_seconds == 300
    pods = (running(0), running(1))
    ours = write(ours, *pods, now=NOW + 20)
    ours = write(ours, *pods, now=NOW + 500, report=reports(100))
    ours = write(ours, failed(0), running(1), now=NOW + 1020, report=reports(300))
    spent = ours.status.goodput
    assert (spent.starting_seconds, spent.productive_seconds) == (20, 1000)
    assert spent.ratio == "0.980"


def test_what_has_to_be_done_again_is_lost() -> None:
    past = {
        "attempt": 0,
        "startTime": "2027-01-15T07:00:00Z",
        "endTime": "2027-01-15T07:50:00Z",
        "reason": "Exception",
        "firstStep": 0,
        "step": 300,
    }
    spent = {"productiveSeconds": 3000, "since": STARTED}
    ours = in_attempt(1, history=[past], goodput=spent)
    pods = (running(0, attempt=1), running(1, attempt=1))
    ours = write(ours, *pods, report=reports(200, 1))
    assert ours.status.goodput.lost_seconds == 1000
    assert ours.status.goodput.productive_seconds == 2000
    ours = write(ours, *pods, now=NOW + 5, report=reports(250, 1))
    assert ours.status.goodput.lost_seconds == 1000, "once"
    counted = in_attempt(1, history=[past], goodput=spent)
    counted = write(counted, *pods, report=reports(200, 1, source="counted"))
    assert counted.status.goodput.lost_seconds == 0
