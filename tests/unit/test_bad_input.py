"""Every broken job file is refused offline, with field, value and rule named."""

import pytest
from typer.testing import CliRunner

from ddpjob.cli import app
from tests.bad_input.cases import FOLDER, Case, cases

CASES = cases()


def complaints(case: Case) -> list[str]:
    """What `ddpjob validate` says about the file, line by line, and that it fails."""
    ended = CliRunner().invoke(app, ["validate", str(case.file)])
    assert ended.exit_code == 1, ended.output
    assert isinstance(ended.exception, SystemExit), ended.exception
    lines = ended.stderr.splitlines()
    assert all(line.startswith(f"{case.file}: ") for line in lines)
    return [line.removeprefix(f"{case.file}: ") for line in lines]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_validate_names_field_value_and_rule(case: Case) -> None:
    (complaint,) = complaints(case)  # one fault in each file, so one line
    title, named, words = complaint.partition(f"{case.path}: " if case.path else case.rule)
    assert named, f"{case.path} is not named in: {complaint}"
    assert title == "" or title.endswith(": ")
    assert case.rule in named + words
    if case.refused_by == "both" and case.value:
        assert words.endswith(f", got {case.value}")
    assert case.value in words


def test_every_file_is_in_the_index_and_every_entry_has_its_file() -> None:
    files = {path.stem for path in FOLDER.glob("*.yaml")} - {"index"}
    assert files == {case.name for case in CASES}
    assert len(files) >= 45


def test_what_only_one_of_the_two_refuses_has_a_reason() -> None:
    assert {case.refused_by for case in CASES} == {"both", "validate"}
    for case in CASES:
        assert bool(case.reason) == (case.refused_by != "both"), case.name
