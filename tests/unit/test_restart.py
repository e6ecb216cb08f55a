"""How a new attempt begins."""

from ddpjob.plan.cleanup import SURVIVOR_GRACE
from tests.builders import NOW, decide, deleted, failed, pod, running, see, started, summary, write


def test_a_restart_deletes_running_pods_and_keeps_failed_ones() -> None:
    pods = (running(0), failed(1, summary(rank=1)))
    step = decide(write(started(), *pods), see(*pods), NOW)
    assert [(d.pod.name, d.grace_seconds) for d in step.delete] == [("digits-0-0", SURVIVOR_GRACE)]
    assert not step.create


def test_pods_of_the_next_attempt_wait_until_the_old_ones_have_ended() -> None:
    pods = (running(0), failed(1, summary(rank=1)))
    restarting = write(started(), *pods)
    dying = running(0, deleting=True)
    assert decide(restarting, see(dying, pods[1]), NOW).create == ()
    assert decide(restarting, see(pods[1]), NOW).create == (0, 1)


def test_the_next_failure_deletes_the_failed_pods_of_the_one_before() -> None:
    first = write(started(), running(0), failed(1, summary(rank=1)))
    second = write(first, pod(0, attempt=1), pod(1, attempt=1), failed(1))
    third = write(second, failed(0, attempt=1), running(1, attempt=1), failed(1))
    step = decide(third, see(failed(0, attempt=1), failed(1)), NOW)
    assert deleted(step) == {"digits-0-1"}
