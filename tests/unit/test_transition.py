"""Which change of a status is written at once, and what a definition has dropped of it."""

from dataclasses import replace

from ddpjob.api import DDPJob, Status
from ddpjob.controller.events import is_pruned, is_transition
from ddpjob.errors import Refused
from ddpjob.plan.model import PodRecord
from ddpjob.times import timestamp
from tests.builders import NOW, decide, job, pod, reports, running, see, started, whole, write


def after(ours: DDPJob, *pods: PodRecord, **fields: object) -> Status:
    return decide(ours, see(*pods, **fields), NOW).status


def test_counts_progress_and_the_curve_wait() -> None:
    ours = whole()
    told = after(ours, running(0), running(1), report=replace(reports(5), loss=0.5))
    assert told.curve == [[5, 0.5]] and told.summary != ours.status.summary
    assert not is_transition(ours.status, told)
    assert is_transition(started().status, after(started(), running(0), running(1)))


def test_why_a_pod_waits_is_written_at_once_and_about_which_pod_is_not() -> None:
    """A thousand pods that find nodes one after the other were a thousand writes at once."""
    stuck = [pod(rank, reason="Unschedulable", message=f"0/{rank} nodes") for rank in (0, 1)]
    ours = started()
    first = after(ours, *stuck)
    assert is_transition(ours.status, first)
    ours = write(ours, *stuck)
    second = after(ours, pod(0), stuck[1])
    assert second.summary.pod == "digits-0-1" and not is_transition(ours.status, second)
    pulls = pod(1, reason="Pulling", message="image x", started_at=timestamp(NOW - 60))
    assert is_transition(ours.status, after(ours, pod(0), pulls))
    assert is_transition(ours.status, after(ours, running(0), running(1)))


def test_why_pods_are_refused_is_written_at_once() -> None:
    """Nothing else is written before the pods are created."""
    ours = started(pod(0))
    for count in (1, 2):
        refused = Refused(403, "Forbidden", f"exceeded quota: used {count}")
        found = after(ours, pod(0), create_error=refused)
        assert is_transition(ours.status, found)
        ours = write(ours, pod(0), create_error=refused)


def test_a_status_that_the_definition_prunes_is_noticed() -> None:
    written = job(status={"attempt": 2, "progress": {"step": 7, "attempt": 2}}).status.to_json()
    assert not is_pruned(written, written)
    older = {**written, "progress": {"step": 7}}
    assert is_pruned(written, older)
    assert is_pruned(written, {name: written[name] for name in written if name != "progress"})
    assert not is_pruned(older, written), "a default that a newer definition adds"


def test_a_definition_without_the_newest_fields_is_noticed_by_each_of_them() -> None:
    failure = {"attempt": 0, "reason": "Exception", "traceback": "line"}
    status = {"curve": [[5, 0.5]], "summary": {"reason": "no room"}, "failure": failure}
    written = job(status=status).status.to_json()
    assert not is_pruned(written, written)
    assert is_pruned(written, {name: value for name, value in written.items() if name != "curve"})
    assert is_pruned(written, {**written, "summary": {}})
    assert is_pruned(written, {**written, "failure": {"attempt": 0, "reason": "Exception"}})
