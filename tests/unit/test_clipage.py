"""docs/cli.md says what the command line does."""

import json
import re
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from ddpjob.cli.live import records
from ddpjob.cli.logs import SHOWN, record
from ddpjob.cli.validation import Problem
from ddpjob.cli.verbs import VERBS
from ddpjob.client.description import describe
from ddpjob.client.logs import LogLine
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import InvalidJob
from tests.builders import NOW, job_object
from tests.clipage import meanings, with_tables
from tests.cluster.tiers import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()


def test_the_page_is_that_of_these_commands() -> None:
    assert with_tables(PAGE) == PAGE, "make generate"


def test_each_exit_code_has_a_meaning() -> None:
    assert all(text.endswith(".") for text in meanings().values()) and len(meanings()) == 9


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="commands: its comments must stand there once, not 0"):
        with_tables(PAGE.replace("<!-- commands -->", ""))


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
    with records() as shown:
        shown.status({})
        shown.line(LogLine("", 0, 0, 0, 0, "local", "digits-0-0", b"x"))
        shown.note("y")
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert documented("`run`") >= {field for record in printed for field in record}


JOBS = {"json", "yaml", "name"}
RECORD = {"text", "json"}
FORMS = {
    **dict.fromkeys(("submit", "suspend", "resume", "rerun"), JOBS),
    "get": {*JOBS, "table", "wide"},
    "delete": {"name"},
    "convert": {"json", "yaml"},
    "logs": {*RECORD, "raw"},
    **dict.fromkeys(("run", "describe", "wait", "top", "stacks", "doctor", "version"), RECORD),
    "validate": RECORD,
}
WITHOUT = {"completion", "crd", "plot"}


def test_each_command_prints_what_scripts_read_or_the_page_says_that_it_does_not() -> None:
    found, helps = {}, {}
    for verb in VERBS:
        function = getattr(import_module(f"ddpjob.cli.{verb}"), verb)
        if output := get_type_hints(function, include_extras=True).get("output"):
            kind, option = output.__origin__, output.__metadata__[0]
            (enum,) = {*(get_args(kind) or (kind,))} - {type(None)}
            assert {"--output", "-o"} == {option.default, *option.param_decls}
            found[verb], helps[verb] = {str(form) for form in enum}, option.help.lower()
    assert found == FORMS and {*VERBS} == {*FORMS, *WITHOUT}
    for verb, forms in FORMS.items():
        assert all(form in helps[verb] for form in forms), f"{verb}: {helps[verb]}"
    (without,) = re.findall(r"((?:`\w+`[, \n]*(?:and )?)+) have no `-o`", PAGE)
    assert set(re.findall(r"\w+", without.replace("and", ""))) == WITHOUT


def test_the_fields_of_all_records_are_on_a_page() -> None:
    pages = PAGE + (ROOT / "docs" / "submit.md").read_text()
    for verb, forms in FORMS.items():
        if forms <= {*JOBS, "table", "wide"}:  # the objects as stored
            assert f"`{verb}" in PAGE
        else:
            assert re.search(rf"^\| `{verb}( -o json)?`[^|]* \| \|$", pages, re.MULTILINE), verb
