"""Every broken job is refused offline, with field, value and rule named."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpjob.cli import app
from tests.bad_input.cases import FOLDER, Case, cases

CASES = cases()


def complaints(file: Path) -> list[str]:
    """What `ddpjob validate` says about the file, line by line, and that it fails."""
    ended = CliRunner().invoke(app, ["validate", str(file)])
    assert ended.exit_code == 1, ended.output
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


def test_every_case_has_a_patch_or_a_file_and_every_file_is_a_case() -> None:
    files = {path.stem for path in FOLDER.glob("*.yaml")} - {"cases"}
    assert files == {case.name for case in CASES if case.patch is None}
    assert len(CASES) >= 199


def test_what_only_one_of_the_two_refuses_has_a_reason() -> None:
    assert {case.refused_by for case in CASES} == {"both", "validate"}
    for case in CASES:
        assert bool(case.reason) == (case.refused_by != "both"), case.name
