"""The threads that keep a job and its pods up to date."""

import pytest

from ddpjob.client.job import Job
from ddpjob.client.tracked import Tracked
from tests.builders import job_object


@pytest.mark.timeout(60)
def test_whatever_ends_a_thread_is_seen_by_who_waits() -> None:
    tracked = Tracked(None, Job(None, job_object("digits")))  # type: ignore[arg-type]

    def act() -> None:
        raise SystemExit("cannot fit")

    tracked.spawn(act)
    with tracked.changed:
        assert tracked.changed.wait_for(lambda: tracked.error is not None, 200)
    assert isinstance(tracked.error, SystemExit)
