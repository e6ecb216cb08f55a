"""How a new attempt begins."""

from tests.builders import NOW, decide, deleted, failed, pod, running, see, started, summary, write


def test_the_next_failure_deletes_the_failed_pods_of_the_one_before() -> None:
    first = write(started(), running(0), failed(1, summary(rank=1)))
    second = write(first, pod(0, attempt=1), pod(1, attempt=1), failed(1))
    third = write(second, failed(0, attempt=1), running(1, attempt=1), failed(1))
    step = decide(third, see(failed(0, attempt=1), failed(1)), NOW)
    assert deleted(step) == {"digits-0-1"}
