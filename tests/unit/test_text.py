"""Text of others is printed so that it cannot be anything but text."""

import ast
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob import names
from ddpjob.api import Status, validate
from ddpjob.cli.validate import check
from ddpjob.errors import InvalidJob, cluster_error
from ddpjob.plan.decide import decide
from ddpjob.plan.status import with_progress
from ddpjob.plan.termination import ProgressPage
from ddpjob.text import printable, printable_bytes, printable_end, printable_lines
from tests.builders import NOW, failed, job_object, running, see, started, summary
from tests.cluster.tiers import ROOT

# Each could do something in a terminal, a log or a reader's eye.
HOSTILE = (
    *("\n", "\r\n", "\r", "\t", "\0", "\x1b[2J", "\x1b]0;title\x07", "\x9b2J", "\x08", "\x7f"),
    *("\x85", "\u2028", "\u2029", "\x0b", "\x0c"),  # what ends a line somewhere
    *("\u202e", "\u2066", "\u2069", "\u200e", "\u061c"),  # direction
    *("\u200b", "\u200d", "\ufeff", "\u2060", "\xad", "\u180e", "\u3164", "\ufe0f", "\u034f"),
    *("\ud800", "\U000e0041", "\ue000", "\uffff", "\xa0"),
)
texts = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=5), max_size=8).map("".join)
ANYTHING = "".join(HOSTILE) + "fake.yaml: ok" * 900


def is_harmless(text: str) -> bool:
    """One line of characters that can be seen, by Unicode's tables and not by our own."""
    kinds = {unicodedata.category(character) for character in text if character != " "}
    unseen = set("\u034f\u3164\ufe0f") & set(text)
    return len(text.splitlines()) <= 1 and not unseen and not any(k[0] in "CZ" for k in kinds)


@given(texts)
def test_every_character_can_be_seen_and_a_second_time_changes_nothing(text: str) -> None:
    found = printable(text)
    assert is_harmless(found) and printable(found) == found
    cut = printable(text, 30)
    assert len(cut) <= 30 and (cut == found or cut.endswith("…"))
    if is_harmless(text):
        assert found == text


@given(texts, st.integers(4, 60))
def test_the_end_of_a_traceback_is_harmless_line_by_line_and_has_its_bound(
    text: str, limit: int
) -> None:
    found = printable_end(text, limit)
    assert len(found) <= limit and printable_end(found, limit) == found
    assert all(is_harmless(line.replace("\t", "")) for line in found.split("\n"))


def test_the_end_of_a_traceback_begins_with_a_whole_line() -> None:
    lines = [f'  File "train.py", line {number}, in step' for number in range(400)]
    found = printable_end("\n".join(lines), 2048).split("\n")
    assert found[0] == "…" and found[1:] == lines[-len(found) + 1 :] and len(found) > 40
    assert printable_end("a\tb\nc\x1b[2J", 2048) == "a\tb\nc\\x1b[2J"
    assert printable_end("x" * 5000 + "\n", 2048) == "…\n" + "x" * 2045 + "\n"


@given(texts, st.integers(4, 60))
def test_a_text_of_so_many_bytes_is_harmless_and_has_its_bound(text: str, limit: int) -> None:
    found = printable_bytes(text, limit)
    assert len(found.encode()) <= limit and is_harmless(found)
    assert printable_bytes(found, limit) == found
    if len(printable(text).encode()) <= limit:
        assert found == printable(text)


def test_text_of_all_countries_stays() -> None:
    text = r"a b naïve – “ok”… 日本語 тест عربي हिन्दी 😀 C:\x1b\n" + "e\u0301"
    assert printable(text) == text


def test_lines_of_a_traceback_stay_and_cannot_begin_a_record() -> None:
    found = printable_lines("a\n\tb\x1b\r\n2026 INFO forged", indent="  ")
    assert found == "a\n  \tb\\x1b\\r\n  2026 INFO forged"


# Where it enters


def test_complaints_and_answers_are_one_line_of_bounded_length() -> None:
    complaint = InvalidJob(f"spec.{ANYTHING}", f"is {ANYTHING}, must be small")
    answer = cluster_error(403, ANYTHING, ANYTHING)
    for text in (complaint.path, complaint.rule, answer.reason, answer.message):
        assert is_harmless(text)
    assert len(str(complaint)) < 4096 and len(str(answer)) < 8192
    assert is_harmless(str(complaint)) and is_harmless(str(answer))


@pytest.mark.parametrize(
    "message",
    [
        ANYTHING[:400],
        summary(message=ANYTHING[:400], reason=ANYTHING[:40], exception=ANYTHING[:200]),
        summary(signal=ANYTHING[:60], reason="Signal"),
    ],
)
def test_what_a_pod_says_is_quoted_and_nothing_is_lost_behind_it(message: str) -> None:
    step = decide(
        started(failurePolicy={"maxRestarts": 0}), see(failed(0, message), running(1)), NOW
    )
    failure, ended = step.status.failure, step.status.condition("Failed")
    assert step.status.state == "Failed" and failure and ended
    for text in (failure.message, failure.reason, ended.message, step.events[0].message):
        assert is_harmless(text)
    assert "failurePolicy.maxRestarts is 0" in ended.message


def test_names_of_metrics_too_and_no_two_become_one_name_twice() -> None:
    metrics = dict.fromkeys(("a\x1b[2J", r"a\x1b[2J", "\U000e0041" * 63, "\U000e0042" * 63), 1.0)
    found = ProgressPage(step=1, source="file", metrics=metrics).report()
    status = with_progress(Status(), found)
    assert status.progress and Status.model_validate(status.to_json()) == status
    names = [metric.name for metric in status.progress.metrics]
    assert len(names) == 3 and all(map(is_harmless, names))


def hostile_jobs(text: str) -> Iterator[dict[str, Any]]:
    """Jobs with `text` for the names of all kinds of things."""
    trainer: dict[str, Any] = {"name": "trainer"}
    pods: tuple[dict[str, Any], ...] = (
        {text: 1},
        {"containers": [{"name": text, "volumeMounts": text}]},
        {"containers": [{**trainer, "env": [{"name": text}, {"name": "RANK", "value": text}]}]},
        {"containers": [{**trainer, "securityContext": {"privileged": True}, text: 1}]},
        {"containers": [{"name": text, "image": "a", "securityContext": {"privileged": True}}]},
        {"volumes": [{"name": text, "hostPath": {"path": "/"}}, {"name": text, text: {}}]},
        {"nodeSelector": {"$" + text: text}},
        {"serviceAccountName": text},
        {"priorityClassName": "system-" + text},
    )
    yield from (job_object(template={"spec": pod}) for pod in pods)
    metadata = ({text: 1}, {"labels": {text: 1}}, {"annotations": {names.GROUP + "/" + text: text}})
    yield from (job_object(template={"metadata": part}) for part in metadata)
    yield from (job_object(template={text: 1}), job_object(master={"template": {text: 1}}))
    unknown: dict[str, Any] = {text: 1}
    yield from (job_object(**unknown), job_object(env=[{"name": text, "value": text, text: 1}]))
    yield from (job_object(backend=text), job_object(volumeMounts=[{"name": text}]))
    yield from (job_object(resources={"limits": {text: text}}), job_object(image=text))
    rule = {"onMessagePattern": f"({text}", "action": text}
    yield job_object(failurePolicy={"rules": [rule]})
    for field in ("name", "namespace", text):
        found = job_object()
        found["metadata"][field] = text
        yield found
    for field in ("labels", "annotations"):
        found = job_object()
        found["metadata"][field] = {text: text}
        yield found


@pytest.mark.parametrize("text", ["\nfake.yaml: ok\x1b[2J\u202e\u200b\u2028", "x\n" * 3000])
def test_names_of_all_kinds_are_quoted_in_complaints(text: str) -> None:
    told = [
        problem for found in hostile_jobs(text) for problem in (*validate(found), *check(found))
    ]
    assert len(told) > 25
    for problem in told:
        assert is_harmless(str(problem)) and len(str(problem)) < 3000, problem
        assert ": " in str(problem)[: len(problem.path) + 2], "the rule is still there"


# The wall


PACKAGE = ROOT / "operator" / "ddpjob"
IN_PODS = ("shim.py",)  # what these print is a pod's log
PRINTS = {"echo", "secho", "basicConfig", "StreamHandler", "Formatter", "Console", "addHandler"}
WHERE = {
    "cli/output.py": {"echo", "sys.stdout", "sys.stderr"},  # raw lines, for who asks for them
    "cli/crd.py": {"echo"},  # made of our own models
    "cli/live.py": {"sys.stdout"},  # what is printable but for colours, and JSON in ASCII
    "cli/table.py": {"Console"},
    "code/call_script.py": {"print", "sys.stderr"},  # a pod's log
    "client/display.py": {"print", "sys.stderr"},  # through `printable`, for who uses the SDK
    "cluster/login.py": {"addHandler"},  # one that writes nothing
    "jsonlog.py": {"Formatter"},  # whose message goes through `printable`, all else as JSON
    "text.py": {"basicConfig", "StreamHandler", "Formatter"},
}


def printing(path: Path) -> Iterator[str]:
    """Whatever in this source could print past `printable`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in PRINTS:
            yield node.attr
        elif isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr"):
            if isinstance(node.value, ast.Name) and node.value.id == "sys":
                yield f"sys.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in {"print", *PRINTS}:
            yield node.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("SystemExit", "BadParameter") and not _is_printable(node.args[0]):
                yield name


def _is_printable(argument: ast.expr) -> bool:
    called = isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name)
    return isinstance(argument, ast.Constant) or (called and argument.func.id == "printable")  # type: ignore[attr-defined]


def test_nothing_is_printed_past_the_one_function() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if path.name not in IN_PODS]
    assert len(sources) > 50
    found = {path.relative_to(PACKAGE).as_posix(): set(printing(path)) for path in sources}
    assert {path: names for path, names in found.items() if names} == WHERE
