"""The verdict on a pod, and the summary that tells it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent.failures import Failure
from ddpjob_agent.verdict import Verdict, judge_failures, judge_memory, missing_script, summarize


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python3", "-u", "no/such.py", "--lr", "1"], "no/such.py"),
        (["/usr/bin/python3.12", "-X", "dev", "-W", "error", "no/such.py"], "no/such.py"),
        (["python3", __file__], None),
        (["python", "-m", "no.such"], None),
        (["python", "-c", "x"], None),
        (["python3", "-u"], None),
        (["bash", "no/such.sh"], None),
        (["python3-config", "no"], None),
    ],
)
def test_a_script_that_python_would_not_find_is_known(
    command: list[str], script: str | None
) -> None:
    assert missing_script(command) == script


# Drawing each of thousands of characters would take most of the time.
long_texts = st.builds(lambda part, times: part * times, st.text(max_size=60), st.integers(1, 100))


@given(
    message=long_texts,
    trace=long_texts,
    metrics=st.dictionaries(st.text(max_size=63), st.floats(), max_size=32),
)
def test_the_summary_always_fits_and_is_json(
    message: str, trace: str, metrics: dict[str, float]
) -> None:
    failure = Failure(message, 1.5, rank=3, exception="E" * 300, traceback=trace)
    page = {"step": 1, "metrics": metrics}
    content = summarize(Verdict("Exception", 1, failure), page)
    summary = json.loads(content.decode("utf-8"))
    assert len(content) <= 4096
    assert (summary["rank"], summary["progress"]["step"]) == (3, 1)


def test_the_worst_summary_fits() -> None:
    metrics = {"\x01" * 63 + str(i): -1.7976931348623157e308 for i in range(32)}
    failure = Failure("\x01" * 9000, 1.5, exception="\x01" * 9000, traceback="\x01" * 9000)
    failure.place = '"\x01' * 9000
    page = {"step": 1, "metrics": metrics, "namespace": "n" * 63, "job": "j" * 253}
    assert len(summarize(Verdict("Exception", 1, failure), page)) <= 4096


def test_a_long_traceback_keeps_its_end() -> None:
    failure = Failure("ValueError: boom", 1.5, traceback="x" * 9000 + "the last line")
    summary = json.loads(summarize(Verdict("Exception", 1, failure), {}))
    assert summary["traceback"].endswith("the last line")
    assert summary["message"] == "ValueError: boom"


@pytest.mark.parametrize(
    ("kills", "failure", "reason"),
    [
        (1, {"signal": "SIGKILL"}, "OOMKilled"),
        (0, {"signal": "SIGKILL"}, "Signal"),
        (1, {"signal": "SIGSEGV", "message": "killed by SIGSEGV"}, "Signal"),
        (1, {"exception": "ValueError", "message": "ValueError: boom"}, "Exception"),
        (
            1,
            {
                "exception": "RuntimeError",
                "message": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ",
            },
            "OOMKilled",
        ),
        (
            1,
            {
                "exception": "RuntimeError",
                "message": "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
            },
            "OOMKilled",
        ),
    ],
)
def test_a_kill_for_want_of_memory_is_told_from_other_ends(
    kills: int, failure: dict[str, str], reason: str
) -> None:
    values: dict[str, Any] = {"message": "killed by SIGKILL", "time": 1.0, **failure}
    first = Failure(**values)
    given = judge_failures([first])
    found = judge_memory(given, kills)
    assert found.reason == reason
    assert ("out of memory" in first.message) == (reason == "OOMKilled")
    assert (found.agent_exit == 137) == (first.signal == "SIGKILL" or reason == "OOMKilled")
