"""Rows of `ddpjob get`, and how they are put into columns."""

from copy import deepcopy
from typing import Any, get_args

from rich.cells import cell_len

from ddpjob import api, names
from ddpjob.cli.columns import lines, styled
from ddpjob.cli.get import HEADINGS, ORDERS, STATES, WIDE, Selection, headings, row
from ddpjob.cli.options import Output
from ddpjob.client.connection import Connection
from ddpjob.client.html import table
from ddpjob.client.job import Job
from ddpjob.client.snapshot import brief
from ddpjob.times import timestamp
from tests.builders import NOW, job_object, resumed
from tests.fuzz import fuzzed_status


def job(status: dict[str, Any] | None = None, **metadata: Any) -> Job:
    body = job_object("llama")
    body["metadata"] |= {"creationTimestamp": timestamp(NOW - 7200), **metadata}
    return Job(Connection("team"), {**body, "status": status} if status else body)


def running_false(reason: str, message: str, since: float) -> dict[str, Any]:
    found = {"type": "Running", "status": "False", "reason": reason, "message": message}
    return {**found, "lastTransitionTime": timestamp(NOW - since)}


def test_a_job_without_a_status_is_pending() -> None:
    assert row(job(), NOW) == ("llama", "Pending", "-", "-", "-", "-", "0", "2h", "")


def test_the_operators_line_gets_the_time_for_which_it_holds() -> None:
    status = {
        "state": "Starting",
        "summary": {"nodes": "0/2", "reason": "Pulling: image REG/x, pod llama-0-1"},
        "conditions": [running_false("Pulling", "…", 90)],
    }
    assert row(job(status), NOW)[-1] == "Pulling 1m30s: image REG/x, pod llama-0-1"
    failed = {"state": "Failed", "summary": {"reason": "RestartsExhausted: ExitCode r0: bad"}}
    assert row(job(failed), NOW)[-1] == "RestartsExhausted: ExitCode r0: bad"


def test_a_resumed_job_waits_since_it_was_resumed() -> None:
    body = job_object("digits") | {"status": resumed().status.to_json()}
    [*_, reason] = row(Job(Connection("team"), body), NOW)
    assert reason == "Pulling 20s: image reg/x, pod digits-1-1"


def test_what_an_earlier_attempt_waited_for_does_not_count() -> None:
    """Attempts that never run leave state and condition as they are."""
    ended = {"attempt": 0, "reason": "StartupDeadlineExceeded", "endTime": timestamp(NOW - 60)}
    status = {
        "state": "Restarting",
        "conditions": [running_false("Unschedulable", "no GPU", 3600)],
        "goodput": {"since": timestamp(NOW - 3500)},
        "history": [ended],
    }
    assert row(job(status), NOW)[-1] == "Unschedulable 1m: no GPU"


def test_of_an_older_operator_the_reason_is_made_of_its_conditions() -> None:
    status = {"state": "Starting", "conditions": [running_false("Unschedulable", "no GPU", 720)]}
    assert row(job(status), NOW)[-1] == "Unschedulable 12m: no GPU"
    refused = {"conditions": [{"type": "Accepted", "status": "False", "reason": "Invalid"}]}
    assert row(job(refused), NOW)[-1] == "Invalid"
    failure = {"rank": 13, "node": "gpu-17", "reason": "ExitCode", "message": "CUDA error"}
    restarting: dict[str, Any] = {"state": "Restarting", "failure": failure}
    restarting["conditions"] = [running_false("ExitCode", "r13", 3)]
    assert row(job(restarting), NOW)[-1] == "ExitCode r13 gpu-17: CUDA error"
    plain = {"state": "Starting", "conditions": [running_false("Starting", "pods", 3)]}
    assert row(job(plain), NOW)[-1] == ""


def test_wide_rows_have_as_many_cells_as_headings() -> None:
    status = {"attempt": 2, "round": 1, "failure": {"pod": "llama-2-0", "node": "gpu-1"}}
    status["state"] = "Restarting"
    cells = row(job(status), NOW, wide=True, namespaces=True)
    named = dict(zip(headings(wide=True, namespaces=True), cells, strict=True))
    assert named["ATTEMPT"] == "2.1" and named["POD"] == "llama-2-0" and named["USER"] == "-"
    assert headings(wide=True) == (*HEADINGS, *WIDE, "REASON")
    summary = {"attempt": "3.0", "pod": "llama-3-0", "node": "gpu-2"}
    assert row(job({"summary": summary}), NOW, wide=True)[8:11] == ("3.0", "llama-3-0", "gpu-2")


def test_tables_show_the_same_of_a_job_in_brief() -> None:
    for number in range(40):
        body = job_object("digits", resources={"limits": {"nvidia.com/gpu": 8}})
        body["metadata"] |= {"annotations": {names.USER_ANNOTATION: "ana"}, "uid": "u"}
        whole = Job(Connection("team"), {**body, "status": fuzzed_status(number)})
        short = Job(Connection("team"), brief(deepcopy(whole.body)))
        assert row(short, NOW, wide=True) == row(whole, NOW, wide=True)
        assert table([short], NOW) == table([whole], NOW)
        assert [order(short) for order in ORDERS.values()] == [
            order(whole) for order in ORDERS.values()
        ]
        assert short.to_record() == whole.to_record() and short.user == "ana"
    assert {"curve", "template"}.isdisjoint({*short.body["status"], *short.body["spec"]})


def test_cells_are_printable() -> None:
    cells = row(job({"state": "\x1b[2J\n", "summary": {"reason": "\u202e", "nodes": "\x07"}}), NOW)
    assert all(cell.isprintable() for cell in cells)


def test_what_is_watched_is_said_as_it_can_be_typed_again() -> None:
    every = Selection(("a", "b; rm"), True, "team in (a, b)", "Failed,Running", True)
    found = every.flags("step", Output.WIDE)
    assert found == (
        " a 'b; rm' -A --mine -l 'team in (a, b)' --state Failed,Running --sort step -o wide"
    )
    assert Selection().flags("age", Output.TABLE) == ""
    assert Selection(labels="age").flags("age", Output.TABLE) == " -l age"


def test_states_are_those_of_the_option() -> None:
    assert get_args(api.State) == STATES


def test_columns_are_as_wide_as_their_cells_on_a_terminal() -> None:
    rows = [("日本", "x"), ("a", "yy")]
    shown = lines(("NAME", "B"), rows)
    assert shown == ["NAME  B", "日本  x", "a     yy"]


def test_lines_are_cut_at_the_width_and_states_have_colours() -> None:
    found = styled(("NAME", "STATE", "REASON"), [("a", "Failed", "日" * 50)], 20)
    assert all(cell_len(text.plain) <= 20 for text in found)
    assert found[1].plain.endswith("…") and [str(span.style) for span in found[1].spans] == ["red"]
