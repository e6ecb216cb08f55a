"""Rows of `ddpjob get`, and how they are put into columns."""

from typing import Any, get_args

import pytest
from rich.cells import cell_len

from ddpjob import api
from ddpjob.cli.get import ORDERS, STATES, Listing, Sort
from ddpjob.cli.table import lines, styled
from ddpjob.client.job import Job
from ddpjob.cluster.connection import Connection
from ddpjob.times import timestamp
from tests.builders import NOW, job_object, resumed

row = Listing().row


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
        "summary": {"reason": "Unschedulable: no GPU"},
        "conditions": [running_false("Unschedulable", "no GPU", 3600)],
        "goodput": {"since": timestamp(NOW - 3500)},
        "history": [ended],
    }
    assert row(job(status), NOW)[-1] == "Unschedulable 1m: no GPU"


def test_wide_rows_have_as_many_cells_as_headings() -> None:
    summary = {"attempt": "3.0", "pod": "llama-3-0", "node": "gpu-2"}
    wide = Listing(output="wide", all_namespaces=True)
    named = dict(zip(wide.headings, wide.row(job({"summary": summary}), NOW), strict=True))
    assert named["ATTEMPT"] == "3.0" and named["POD"] == "llama-3-0" and named["USER"] == "-"


@pytest.mark.parametrize(
    ("order", "names"),
    [("loss", ["b", "a", "c"]), ("step", ["c", "b", "a"]), ("restarts", ["a", "b", "c"])],
)
def test_jobs_are_sorted_by_their_figures(order: Sort, names: list[str]) -> None:
    figures = {"a": ("0.5", 1, 2), "b": ("1e-03", 2, 1), "c": ("nan", 3, 0)}
    jobs = [
        job({"summary": {"loss": loss}, "progress": {"step": step}, "restarts": many}, name=name)
        for name, (loss, step, many) in figures.items()
    ]
    assert [each.name for each in sorted(jobs, key=ORDERS[order])] == names


def test_cells_are_printable() -> None:
    cells = row(job({"state": "\x1b[2J\n", "summary": {"reason": "\u202e", "nodes": "\x07"}}), NOW)
    assert all(cell.isprintable() for cell in cells)


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
