"""Which rule of `failurePolicy` decides about a failure, and what the restarts cost."""

import os
import signal
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.api import BackoffSeconds, Budget, DDPJob, FailurePolicy, Status, validate
from ddpjob.api.failure_policy import SIGNALS
from ddpjob.plan.budget import judge, spend, with_refill
from ddpjob.plan.reasons import UNCOUNTED
from tests.builders import (
    NOW,
    condition,
    decide,
    edited,
    failed,
    failure,
    failure_policy,
    in_attempt,
    job,
    job_object,
    pod,
    reports,
    running,
    see,
    started,
    summary,
    with_status,
    write,
)

# Which rule decides


def test_without_a_rule_a_failure_restarts_and_counts_and_a_disruption_does_not_count() -> None:
    assert judge(failure_policy(), failure()) == judge(FailurePolicy(), failure("OOMKilled"))
    verdict = judge(failure_policy(), failure())
    assert (verdict.action, verdict.counts, verdict.rule) == ("Restart", True, None)
    for reason in UNCOUNTED:
        assert judge(failure_policy(), failure(reason)).counts is False


def test_the_first_rule_that_fits_decides() -> None:
    rules = failure_policy(
        {"onExitCodes": [42], "action": "FailJob"},
        {"onExitCodes": [42, 43], "action": "Restart", "countsTowardsMax": False},
    )
    assert judge(rules, failure(exit_code=42)).action == "FailJob"
    verdict = judge(rules, failure(exit_code=43))
    assert (verdict.action, verdict.counts, verdict.rule) == ("Restart", False, 1)
    assert judge(rules, failure(exit_code=44)).rule is None


def test_every_field_of_a_rule_must_fit() -> None:
    rules = failure_policy({"onSignals": ["SIGSEGV"], "onRanks": [0, 3], "action": "FailJob"})
    assert judge(rules, failure(signal="SIGSEGV", rank=3)).action == "FailJob"
    assert judge(rules, failure(signal="SIGSEGV", rank=1)).action == "Restart"
    assert judge(rules, failure(signal="SIGSEGV")).action == "Restart"
    assert judge(rules, failure(rank=3, exit_code=1)).action == "Restart"


def test_a_disruption_stays_uncounted_unless_its_rule_says_so() -> None:
    rule = {"onReasons": ["Evicted"], "action": "Restart", "avoidNode": True}
    verdict = judge(failure_policy(rule), failure("Evicted"))
    assert (verdict.counts, verdict.avoid_node) == (False, True)
    assert judge(failure_policy({**rule, "countsTowardsMax": True}), failure("Evicted")).counts


def test_the_message_is_searched_in_linear_time() -> None:
    found = failure(message="a" * 1023 + "!")
    assert (
        judge(failure_policy({"onMessagePattern": "(a+)+$", "action": "FailJob"}), found).rule
        is None
    )
    cuda = failure_policy({"onMessagePattern": "CUDA error: .*(ECC|NVLink)", "action": "FailJob"})
    assert judge(cuda, failure(message="RuntimeError: CUDA error: bad ECC")).action == "FailJob"


@pytest.mark.skipif(sys.platform != "linux", reason="the pods run on Linux")
def test_every_signal_that_ends_a_process_may_be_named_and_no_other() -> None:
    ending = set()
    fixed = {signal.SIGKILL, signal.SIGSTOP}
    ignored = signal.valid_signals() - fixed  # by Python, or by whoever started it (nohup)
    for number in signal.Signals:
        command = ["sh", "-c", f"kill -{number} $$"]
        process = os.posix_spawn("/bin/sh", command, {}, setsigdef=ignored)
        _, status = os.waitpid(process, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        elif os.WIFSIGNALED(status):
            ending.add(signal.Signals(os.WTERMSIG(status)).name)
    assert ending == set(SIGNALS)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"action": "FailJob"}, "must have one of onExitCodes"),
        ({"onExitCodes": [0], "action": "FailJob"}, "must be at least 1"),
        ({"onSignals": ["segv"], "action": "FailJob"}, "must be one of SIGABRT, "),
        ({"onRanks": [0], "action": "Ignore", "countsTowardsMax": True}, "action must be Restart"),
        ({"onMessagePattern": "(", "action": "FailJob"}, "must be an RE2 expression: missing )"),
        ({"onMessagePattern": "(?=x)", "action": "FailJob"}, "must be an RE2 expression"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rule: dict[str, Any], message: str) -> None:
    problems = validate(job_object(failurePolicy={"rules": [rule]}))
    assert len(problems) == 1 and message in str(problems[0])
    assert problems[0].path.startswith("spec.failurePolicy.rules[0]")


# What is left


BACKOFF = BackoffSeconds(first=10, cap=360)


def fail(budget: Budget, step: int | None = None, **how: Any) -> tuple[Budget, float]:
    return spend(budget, step, **{"counts": True, "ran_seconds": 1.0, "backoff": BACKOFF, **how})


def test_the_first_restart_is_at_once_and_the_pauses_double_up_to_the_cap() -> None:
    budget, pauses = Budget(), []
    for _ in range(9):
        budget, pause = fail(budget)
        pauses.append(pause)
    assert pauses == [0, 10, 20, 40, 80, 160, 320, 360, 360]
    assert budget.charged == budget.consecutive_restarts == 9


def test_disruptions_do_not_count_but_pause_as_well() -> None:
    budget, _ = fail(Budget(), counts=False)
    budget, pause = fail(budget, counts=False)
    assert (budget.charged, budget.consecutive_restarts, pause) == (0, 2, 10)


def test_an_attempt_that_ran_for_longer_than_the_cap_ends_the_row() -> None:
    budget = Budget(charged=2, consecutive_restarts=5)
    budget, pause = fail(budget, ran_seconds=361.0)
    assert (budget.charged, budget.consecutive_restarts, pause) == (3, 1, 0)


def test_who_gets_further_than_ever_has_the_whole_budget_again() -> None:
    budget, _ = fail(Budget(), step=100)
    budget, _ = fail(budget, step=90)
    assert (budget.charged, budget.highest_step) == (2, 100)
    assert with_refill(budget, 100) == budget and with_refill(budget, None) == budget
    assert with_refill(budget, 101) == Budget(highest_step=100)


def test_the_same_step_is_counted_over_counted_failures_alone() -> None:
    budget, _ = fail(Budget(), step=7)
    budget, _ = fail(budget, step=3, counts=False)
    budget, _ = fail(budget, step=7)
    assert (budget.same_step_failures, budget.failed_step) == (2, 7)
    budget, _ = fail(budget, step=8)
    assert budget.same_step_failures == 1
    assert fail(Budget())[0].same_step_failures == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30))
def test_the_highest_step_never_falls_and_pauses_stay_within_bounds(
    failures: list[tuple[int, bool]],
) -> None:
    budget, highest = Budget(), -1
    for step, counts in failures:
        budget, pause = fail(with_refill(budget, step), step=step, counts=counts)
        highest = max(highest, step)
        assert budget.highest_step == highest and 0 <= pause <= BACKOFF.cap
        assert budget.charged <= budget.consecutive_restarts


# What the decision makes of it


def test_the_second_restart_in_a_row_waits() -> None:
    once = in_attempt(1, budget={"charged": 1, "consecutiveRestarts": 1}, restarts=1)
    step = decide(once, see(failed(0, attempt=1), running(1, attempt=1)), NOW)
    assert step.status.state == "Restarting" and step.status.attempt == 2
    assert step.status.budget.next_restart_time == "2027-01-15T08:00:10Z"
    assert "created again in 10s" in step.events[0].message
    again = with_status(once, step.status)
    waiting = decide(again, see(children_ready=False), NOW + 4)
    assert not waiting.create and not waiting.prepare and waiting.requeue_after == pytest.approx(6)
    assert decide(again, see(), NOW + 10).create == (0, 1)


MISSING = {"reason": "LaunchFailed", "message": "no script '/app/train.py'"}


REFUSED = {"reason": "CodeInvalid", "message": "the archive of spec.code is refused: it is cut off"}


def launch_fails(ours: DDPJob, said: dict[str, str] = MISSING, **fields: Any) -> Status:
    return decide(ours, see(failed(0, summary(**said, **fields)), running(1)), NOW).status


@pytest.mark.parametrize("told", [MISSING, REFUSED], ids=lambda told: told["reason"])
def test_what_cannot_be_launched_is_not_tried_again(told: dict[str, str]) -> None:
    status = launch_fails(started(), told)
    assert (status.state, status.restarts, status.attempt) == ("Failed", 0, 0)
    assert condition(status, "Failed") == ("True", told["reason"])
    said = status.condition("Failed")
    assert said and told["message"] in said.message
    assert f"onReasons: [{told['reason']}] and action: Restart" in said.message
    assert status.failure and status.failure.reason == told["reason"]


@pytest.mark.parametrize("told", [MISSING, REFUSED], ids=lambda told: told["reason"])
def test_what_another_launch_may_not_meet_is_tried_again_and_charged(told: dict[str, str]) -> None:
    status = launch_fails(started(), told, exception="FileNotFoundError")
    assert (status.state, status.budget.charged) == ("Restarting", 1)


NO_PYTHON = 'failed to create containerd task: exec: "python3": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("reason", "message", "state"),
    [
        ("StartError", NO_PYTHON, "Failed"),
        (
            "StartError",
            "crun: executable file `python3` not found in $PATH: No such file",
            "Failed",
        ),
        ("ContainerCannotRun", NO_PYTHON + ": unknown", "Failed"),
        ("StartError", "failed to create containerd task: cgroups: no space left", "Restarting"),
        ("Error", NO_PYTHON, "Restarting"),  # a script's own words
    ],
)
def test_an_image_without_python_is_not_tried_again(reason: str, message: str, state: str) -> None:
    dead = failed(0, message, reason=reason, exit_code=128)
    status = decide(started(), see(dead, running(1)), NOW).status
    assert status.state == state
    said = status.condition("Failed")
    assert (said is not None) == (state == "Failed")
    assert said is None or f"onReasons: [{reason}] and action: Restart" in said.message


def test_a_rule_has_a_launch_tried_again_or_ignored() -> None:
    for action, state in (("Restart", "Restarting"), ("Ignore", "Starting")):
        rules = [{"onReasons": ["LaunchFailed"], "action": action}]
        assert launch_fails(started(failurePolicy={"rules": rules})).state == state


@pytest.mark.parametrize("source", ["file", "counted"])
def test_a_script_that_has_trained_before_is_missing_on_some_node_alone(source: str) -> None:
    progress = {"step": 9, "source": source}
    ours = in_attempt(0, progress=progress)
    assert launch_fails(ours).state == "Restarting"
    assert launch_fails(in_attempt(0)).state == "Failed"


def test_three_counted_failures_at_one_step_are_the_end() -> None:
    ours: DDPJob = started(failurePolicy={"maxRestarts": 10})
    for attempt in range(3):
        budget = ours.status.budget
        seen = [failed(0, attempt=attempt), running(1, attempt=attempt)]
        ours = write(ours, *seen, now=NOW + 1000 * attempt, report=reports(500, attempt))
        assert ours.status.budget.same_step_failures == budget.same_step_failures + 1
        if ours.status.state == "Restarting":
            present = (pod(0, attempt=attempt + 1), pod(1, attempt=attempt + 1))
            ours = write(ours, *present, now=NOW + 1000 * attempt + 500)
    assert ours.status.state == "Failed"
    assert condition(ours.status, "Failed") == ("True", "NoProgress")
    assert [past.attempt for past in ours.status.history] == [0, 1, 2]
    assert all(past.charged and past.step == 500 for past in ours.status.history)


def test_progress_before_a_suspension_is_not_made_again() -> None:
    spent = {"charged": 1, "consecutiveRestarts": 1, "highestStep": 50}
    ours = in_attempt(0, budget=spent)
    pods = (running(0), running(1))
    ours = write(ours, *pods, report=reports(100, 0))
    assert ours.status.budget.charged == 0, "further than ever"
    leaving = write(edited(ours, suspend=True), *pods)
    assert leaving.status.budget.highest_step == 100
    resumed = write(write(with_status(ours, write(leaving).status)))
    failing = [failed(0, attempt=1), running(1, attempt=1)]
    charged = write(resumed, *failing)
    assert (charged.status.attempt, charged.status.budget.charged) == (2, 1)
    behind = (running(0, attempt=2), running(1, attempt=2))
    assert write(charged, *behind, report=reports(90, 2)).status.budget.charged == 1


def test_history_keeps_the_last_ten() -> None:
    past = [
        {"attempt": n, "endTime": "2027-01-15T07:00:00Z", "reason": "PodDeleted"} for n in range(10)
    ]
    ours = in_attempt(10, history=past)
    seen = (running(0, attempt=10), running(1, attempt=10, deleting=True))
    history = decide(ours, see(*seen), NOW).status.history
    assert [entry.attempt for entry in history] == list(range(1, 11))


def live_through(ours: DDPJob, steps: tuple[int, ...], *, now: float) -> DDPJob:
    """One attempt of one node that reports these steps and fails."""
    attempt = ours.status.attempt
    alone = running(0, attempt=attempt)
    ours = write(ours, now=now)
    for _ in range(3):
        ours = write(ours, alone, now=now)
    for step in steps:
        ours = write(ours, alone, now=now, report=reports(step, attempt))
    return write(ours, failed(0, summary(), attempt=attempt), now=now)


def test_steps_that_a_script_takes_again_are_no_progress() -> None:
    policy = {"maxRestarts": 2, "backoffSeconds": {"first": 1, "cap": 1}}
    ours = job(nnodes=1, failurePolicy=policy)
    for life in range(3):
        assert ours.status.attempt == life
        ours = live_through(ours, (0, 50, 99, 0, 5 + life), now=NOW + 60 * life)
        assert ours.status.budget.highest_step == 99
    assert ours.status.state == "Failed"
    assert condition(ours.status, "Failed") == ("True", "MaxRestartsExceeded")


def test_a_step_beyond_all_still_gives_the_budget_back_after_steps_taken_again() -> None:
    ours = live_through(job(nnodes=1), (0, 99, 5), now=NOW)
    assert ours.status.budget.charged == 1
    alone = running(0, attempt=1)
    for step, charged in ((98, 1), (99, 1), (100, 0)):
        ours = write(ours, alone, now=NOW + 60, report=reports(step, 1))
        assert ours.status.budget.charged == charged, step
