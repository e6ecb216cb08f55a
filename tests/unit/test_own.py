"""Which pods are the job's own. What a proof is worth: test_proof.py."""

from ddpjob.plan.own import may_be_own
from tests.builders import NOW, STRANGERS, decide, job, running, see, started, write


def test_rank_zeros_own_pod_of_the_attempt_is_the_one_whose_agent_is_asked() -> None:
    ours, others = started(), (running(1), running(0, attempt=1), running(0, attempt=7))
    assert decide(ours, see(*others, running(0)), NOW).head == "uid-digits-0-0"
    assert decide(ours, see(*others, running(0, uid="theirs", root=STRANGERS)), NOW).head == ""
    assert decide(ours, see(*others), NOW).head == ""


def test_pods_of_another_job_are_not_seen() -> None:
    foreign = running(0, owner_uid="somebody-else")
    step = decide(write(job()), see(foreign), NOW)
    assert step.create == (0, 1) and not step.delete


def test_only_places_that_can_be_the_operators_are_looked_for() -> None:
    """Names of pods may say anything, and each place costs a request."""
    ours = write(started(), running(0), running(1))
    places = {(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (999_999_999, 0, 0)}
    assert may_be_own(ours, places) == {(0, 0, 0), (0, 1, 0)}
