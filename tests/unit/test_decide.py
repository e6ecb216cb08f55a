"""The decision as a whole: what it leaves alone, and what holds for whatever is seen."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddpjob.api import Summary
from ddpjob.plan.model import Decision, PodRecord
from tests.builders import (
    NOW,
    decide,
    failed,
    job,
    pod,
    running,
    see,
    started,
    succeeded,
    summary,
    with_status,
    write,
)


def test_the_summary_of_a_finished_job_is_mended_where_somebody_has_edited_it() -> None:
    done = write(started(), succeeded(0), succeeded(1))
    garbled = done.status.model_copy(update={"summary": Summary(nodes="9/9")})
    mended = decide(with_status(done, garbled), see(), NOW).status.summary
    assert (mended.nodes, mended.reason, mended.attempt) == ("2/2", None, "0.0")


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    going = job()
    metadata = going.metadata.model_copy(update={"deletion_timestamp": "2027-01-15T08:00:00Z"})
    step = decide(going.model_copy(update={"metadata": metadata}), see(), NOW)
    assert step == Decision(going.status)


def test_a_job_that_is_older_than_its_pods_is_confirmed_and_nothing_else() -> None:
    old = started()
    ahead = pod(0, attempt=1, created_at="2027-01-15T07:59:50Z")
    assert decide(old, see(ahead, confirmed=False), NOW) == Decision(old.status, confirm=True)


def histories() -> st.SearchStrategy[list[list[PodRecord]]]:
    makers = st.sampled_from([pod, running, succeeded, failed])
    one = st.builds(
        lambda make, rank, attempt, deleting: make(rank, attempt=attempt, deleting=deleting),
        makers,
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
    )
    return st.lists(st.lists(one, max_size=5, unique_by=lambda p: p.name), max_size=8)


@given(histories(), st.booleans())
def test_counters_never_fall_and_terminal_is_terminal(
    history: list[list[PodRecord]], suspend: bool
) -> None:
    current = job(nnodes=3)
    for position, pods in enumerate(history):
        wanted = job(nnodes=3, suspend=suspend and position % 2 == 1)
        before = current.status
        step = decide(with_status(wanted, before), see(*pods), NOW + position)
        after = step.status
        assert after.attempt >= before.attempt and after.restarts >= before.restarts
        assert after.restarts - before.restarts <= 1 and after.attempt - before.attempt <= 1
        if before.state in ("Succeeded", "Failed"):
            assert after == before and not step.create
        if step.create:
            assert not any(p.live and p.attempt < after.attempt for p in pods)
            assert after.state in ("Starting", "Restarting")
        if after.attempt != before.attempt:
            assert not step.delete and not step.create
        current = with_status(wanted, after)


def test_somebody_elses_job_is_left_alone() -> None:
    theirs = job(managedBy="kueue.x-k8s.io/multikueue")
    step = decide(theirs, see(running(0)), NOW)
    assert (step.status, step.create, step.prepare, step.delete) == (theirs.status, (), False, ())
    assert decide(job(managedBy="ddpjob.dev/operator"), see(), NOW).status.state == "Starting"


COMPLETED = summary(reason="Completed", exit_code=0, message="")


def test_without_an_agent_a_deleted_pods_exit_code_0_proves_nothing() -> None:
    told = succeeded(0, deleting=True, disruption="Evicted", node="node-1")
    bare = started(pod(0), nnodes=1, launcher="none")
    status = decide(bare, see(told), NOW).status
    assert status.state == "Restarting" and status.failure and status.failure.reason == "Evicted"
    assert status.budget.charged == 0
    assert decide(bare, see(succeeded(0)), NOW).status.state == "Succeeded"
    assert decide(started(pod(0), nnodes=1), see(told), NOW).status.state == "Succeeded"


def test_an_eviction_does_not_undo_a_training_that_has_completed() -> None:
    ours = write(started(), running(0), running(1))
    done = failed(0, COMPLETED, exit_code=0, reason="Evicted", disruption="Evicted")
    assert decide(ours, see(done, running(1)), NOW).status.succeeded_ranks == "0"
    unsaid = replace(done, message="")
    assert decide(ours, see(unsaid, running(1)), NOW).status.restarts == 1
