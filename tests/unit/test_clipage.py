"""docs/cli.md says what the command line does."""

import json
import re

import pytest

from ddpjob.cli.live import Records
from ddpjob.cli.logs import SHOWN, record
from ddpjob.cli.validate import Problem
from ddpjob.client.description import describe
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LogLine
from ddpjob.errors import InvalidJob
from tests.builders import NOW, job_object
from tests.clipage import meanings
from tests.cluster.tiers import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()


def test_each_exit_code_has_a_meaning() -> None:
    assert all(text.endswith(".") for text in meanings().values()) and len(meanings()) == 9


def documented(title: str) -> set[str]:
    """The fields in the table with this title."""
    part = PAGE[PAGE.index(f"| {title}") :].split("\n\n")[0]
    cells = [line.split(" | ")[0] for line in part.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_fields_of_json_are_documented() -> None:
    body = job_object()
    short = Snapshot(body).to_record()
    assert documented("`wait`") == set(short)
    whole = describe(Snapshot(body), [], now=NOW)
    assert documented("`describe`") == set(whole) - set(short)
    line = LogLine("", 0, 0, 0, 0, "", "", b"x" * 2 * SHOWN)
    assert documented("`logs`") == set(record(line))
    problem = Problem("job.yaml", None, InvalidJob("spec", "is required")).record()
    assert f"`{{{', '.join(problem)}}}` each" in PAGE and documented("`validate`") == {
        "ok",
        "problems",
    }


def test_the_records_of_a_run_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Records()
    shown.job(Snapshot(job_object()))
    shown.line(LogLine("", 0, 0, 0, 0, "local", "digits-0-0", b"x"))
    shown.note("y")
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert documented("`run`") >= {field for record in printed for field in record}
