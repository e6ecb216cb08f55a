"""Every broken job is refused offline, with field, value and rule named."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpjob.api import DDPJob
from ddpjob.cli import app
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import merged
from tests.bad_input.cases import Case, cases
from tests.builders import job_object

CASES = cases()


def complaints(file: Path) -> list[str]:
    """What `ddpjob validate` says about the file, line by line, and that it fails."""
    ended = CliRunner().invoke(app, ["validate", str(file)])
    assert ended.exit_code == 2, ended.output
    assert isinstance(ended.exception, SystemExit), ended.exception
    lines = ended.stderr.splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    return [line.removeprefix(f"{file}: ") for line in lines]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_validate_names_field_value_and_rule(case: Case, tmp_path: Path) -> None:
    (complaint,) = complaints(case.file(tmp_path))  # one fault in each job, so one line
    title, named, words = complaint.partition(f"{case.path}: " if case.path else case.rule)
    assert named, f"{case.path} is not named in: {complaint}"
    assert title == "" or title.endswith(": ")
    assert case.rule in named + words
    if case.refused_by == "both" and case.value:
        assert words.endswith(f", got {case.value}")
    assert case.value in words


def test_a_stored_job_may_break_only_what_is_asked_of_new_ones() -> None:
    """The operator's own reading: whatever it refuses, the API server does not store."""
    read = []
    for case in CASES:
        if case.patch and case.refused_by == "both":
            try:
                DDPJob.parse(merged(job_object(case.name), case.patch))
                read.append(case.name)
            except InvalidJob:
                continue
    assert read == [
        "failure-rule-signal-name",
        "failure-rule-signal-that-ends-nothing",
        "failure-rule-reason-unknown",
        "failure-rule-pattern",
    ]
