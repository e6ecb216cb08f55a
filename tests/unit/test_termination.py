"""What the agents' termination messages say, and which of several failures came first."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpjob.api import MAX_TRACEBACK, Status
from ddpjob.plan.model import PodRecord
from ddpjob.plan.termination import (
    ProgressPage,
    failure,
    final_report,
    first_cause,
    late_failure,
    read_termination,
    secondary_failure,
    termination_of,
    with_traceback,
)
from ddpjob_agent.failures.failures import Failure
from ddpjob_agent.failures.verdict import Verdict, termination_message
from tests.builders import NOW, decide, failed, running, see, started, succeeded, summary


def test_a_failure_is_told_in_the_agents_words() -> None:
    pod = failed(1, summary(rank=5, exception="ValueError", time=1_800_000_000.5), node="n1")
    found = failure(pod)
    assert (found.rank, found.exception, found.node) == (5, "ValueError", "n1")
    assert found.message == "ValueError: boom" and found.time == "2027-01-15T08:00:00Z"


def test_without_an_agent_the_last_line_and_the_exit_code_tell() -> None:
    found = failure(failed(1, "first\nlast line\n\n", exit_code=3))
    assert (found.message, found.exit_code, found.reason) == ("last line", 3, "Error")
    assert failure(failed(1, "", exit_code=137, reason="OOMKilled")).reason == "OOMKilled"
    assert "exit code 4" in failure(failed(1, "", exit_code=4)).message


def test_own_failures_come_before_noise_and_the_earliest_first() -> None:
    noise = failed(0, summary(peer=True, time=10.0))
    late = failed(1, summary(time=30.0))
    early = failed(2, summary(time=20.0))
    assert first_cause([noise, late, early]) is early


def test_an_abort_that_its_agent_saw_late_comes_before_the_echo_that_told_of_it() -> None:
    echo = failed(0, summary(peer=True, time=10.0))
    abort = failed(1, summary(peer=True, suspect=True, time=10.2))
    own = failed(2, summary(time=30.0))
    assert first_cause([echo, abort]) is abort
    assert first_cause([echo, abort, own]) is own


def waits(rank: int, place: str, time: float, **more: Any) -> PodRecord:
    values: dict[str, Any] = {"reason": "Hang", "message": f"rank {rank} waits in {place}"}
    values |= {"rank": rank, "peer": True, "place": place, "time": time, "exit_code": None}
    return failed(rank, summary(**values | more))


def test_of_ranks_that_all_wait_the_one_in_a_place_of_its_own_is_named() -> None:
    pods = [waits(0, "backward", 10.0), waits(1, "barrier", 10.2), waits(2, "backward", 10.1)]
    found = secondary_failure(pods)
    assert (found.rank, found.reason) == (1, "Hang")
    assert found.message == "rank 1 waits in barrier; node rank 0,2 in backward"


def test_whoever_has_not_noticed_a_time_out_is_what_the_others_waited_for() -> None:
    text = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation"
    timed_out = failed(0, summary(peer=True, message=text, time=10.0))
    closed = failed(2, summary(peer=True, message="closed by peer", time=11.0))
    late = running(1)
    found = late_failure([timed_out, closed], [late])
    assert found is not None and (found.reason, found.rank, found.pod) == ("Hang", None, late.name)
    assert "the others waited for node rank 1 in vain" in found.message and text in found.message
    assert late_failure([closed], [late]) is None, "it may have closed its connections"
    assert late_failure([timed_out], [late, running(2)]) is None, "either may be late"
    assert late_failure([timed_out], [replace(late, running=False)]) is None, "it never came"
    hang = waits(0, "wait_timeout", 10.0)
    assert late_failure([hang], [late]) is None, "no time-out of a collective"


@pytest.mark.parametrize("place", [7, "x" * 201, ["barrier"]])
def test_a_place_that_no_agent_writes_spoils_no_judgement(place: Any) -> None:
    pod = failed(0, summary(peer=True, place=place))
    assert read_termination(pod) is None and secondary_failure([pod]).pod == pod.name


def test_a_pod_without_a_summary_is_judged_by_the_kubelets_time() -> None:
    killed = failed(1, "", finished_at="2027-01-15T08:00:00Z")
    later = failed(0, summary(time=1_800_000_010.0))
    assert first_cause([later, killed]) is killed


def test_the_final_report_is_rank_zeros() -> None:
    progress = {"source": "file", "step": 9, "loss": float("nan"), "total_steps": 9}
    report = final_report([succeeded(1), succeeded(0, message=summary(progress=progress))])
    assert report and report.step == 9 and report.loss is not None and math.isnan(report.loss)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "{}", '{"version": 2, "reason": "x"}', '{"version": 1}', "[" * 5000],
)
def test_what_is_no_summary_is_not_believed(text: str) -> None:
    assert read_termination(failed(0, text)) is None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_no_message_can_do_harm(text: str) -> None:
    assert failure(failed(0, text)).reason


@pytest.mark.parametrize("containers", [1, 3, 4, 5, 8])
def test_a_summary_that_the_kubelet_has_cut_still_tells_the_cause(containers: int) -> None:
    """Its end goes: all containers' messages together have 12 KiB."""
    trace = "  File train.py, in step\n" * 400
    page = {"attempt": 0, "node_rank": 1, "source": "file", "step": 7, "metrics": {}}
    raised = Failure("ValueError: boom", 1.5, rank=1, exception="ValueError", traceback=trace)
    content = termination_message(Verdict("Exception", 1, raised), page)[: 12288 // containers]
    record = failed(1, content.decode(errors="replace"))
    found = failure(record)
    assert (found.reason, found.exception, found.rank) == ("Exception", "ValueError", 1)
    assert found.message == "ValueError: boom"
    last = final_report([replace(record, rank=0)])
    assert last and last.step == 7


@pytest.mark.parametrize("metrics", [{}, {"x" * 60 + str(n): 1.0 for n in range(32)}])
def test_a_cut_in_the_report_leaves_the_cause(metrics: dict[str, float]) -> None:
    page = {"attempt": 0, "source": "file", "step": 7, "metrics": {"traceback": 1.0, **metrics}}
    told = Failure(',"progress":{', 1.5, exception="KeyError", traceback="x" * 9000)
    content = termination_message(Verdict("Exception", 1, told), page)
    start = content.index(b'"progress":{"attempt"')
    for end in range(start + 11, len(content), 7):
        found = failure(failed(1, content[:end].decode(errors="replace")))
        assert (found.exception, found.message) == ("KeyError", ',"progress":{'), end


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("Pod was rejected:\n 250m short \n", "OutOfcpu: 250m short"),
        ("", "OutOfcpu: ended with exit code 1, without a message"),
    ],
)
def test_a_refused_pods_failure_has_kubernetes_own_reason(message: str, wanted: str) -> None:
    pod = failed(0, message, reason="OutOfcpu", disruption="NodeRefused")
    assert failure(pod).message == wanted


def test_a_round_is_read_strictly() -> None:
    assert read_termination(failed(0, summary(round=3))) is not None
    for wrong in (-1, 2**31, "3", 3.0, True, None):
        assert read_termination(failed(0, summary(round=wrong))) is None, wrong
        page = {"attempt": 0, "round": wrong, "source": "file", "step": 1}
        with pytest.raises(ValidationError):
            ProgressPage.model_validate(page)
    told = ProgressPage.model_validate({"attempt": 0, "round": 2, "source": "file", "step": 1})
    report = told.report()
    assert report and (report.attempt, report.round) == (0, 2)


def test_a_failure_is_of_the_round_that_its_agent_names_but_of_none_that_has_not_begun() -> None:
    def rounds(message: str, current: int) -> int:
        return failure(failed(1, message), current).round

    assert [rounds(summary(round=2), current) for current in (4, 2, 1)] == [2, 2, 1]
    assert [rounds(summary(), 3), rounds("Killed", 3)] == [0, 3], "without an agent's word: now"
    both = [waits(0, "backward", 10.0, round=1), waits(1, "barrier", 9.0, round=1)]
    assert secondary_failure(both, 2).round == 1
    timed_out = failed(0, summary(peer=True, round=1, message="timed out"))
    late = late_failure([timed_out], [running(1)], 2)
    assert late and late.round == 1


FRAMES = "Traceback (most recent call last):\n" + "".join(
    f'  File "train.py", line {number}, in step\n\tloss = model(x)\n' for number in range(90)
)


def test_the_first_causes_traceback_is_in_the_failure_and_in_no_record() -> None:
    first = failed(1, summary(rank=5, time=1.0, traceback="in step\n\tboom\x1b[2J\n"))
    later = failed(0, summary(rank=0, time=2.0, traceback="in another step"))
    step = decide(started(), see(later, first), NOW)
    found = step.status.failure
    assert found and (found.rank, found.traceback) == (5, "in step\n\tboom\\x1b[2J")
    assert not hasattr(termination_of(first), "traceback")
    assert failure(first).traceback is None


@pytest.mark.parametrize(
    "text", [FRAMES, "\x1b" * 4000, "\U0001f525" * 800, "\n" * 4000, "\t" * 4000]
)
def test_of_a_long_traceback_the_end_is_kept(text: str) -> None:
    written = json.loads(summary())
    long = failed(1, json.dumps({**written, "traceback": text[-3500:]}, ensure_ascii=False))
    found = with_traceback(failure(long), long).traceback
    assert found is None or len(found) <= MAX_TRACEBACK
    status = Status(failure=with_traceback(failure(long), long))
    assert Status.model_validate(status.to_json()) == status, "it is written as it is"
    if text is FRAMES:
        assert found is not None and found.startswith("…\n") and len(found) > 1900
        assert found.endswith(FRAMES[-100:].rstrip("\n"))


def test_a_secondary_failure_has_its_traceback_and_one_without_an_agent_has_none() -> None:
    pod = failed(1, summary(peer=True, traceback="closed by peer"))
    assert secondary_failure([pod]).traceback == "closed by peer"
    assert with_traceback(failure(failed(0, "words")), failed(0, "words")).traceback is None
    cut = summary(traceback="x" * 500)[:-200]  # by a kubelet
    assert with_traceback(failure(failed(0, cut)), failed(0, cut)).traceback is None
