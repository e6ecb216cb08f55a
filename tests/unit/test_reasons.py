"""Every reason of a status stands in `plan/reasons.py`, and so in docs/operations.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from ddpjob import api
from ddpjob.api.failure_policy import REASONS
from ddpjob.plan import budget, reasons
from tests import links, tables
from tests import reasons as reason_pages
from tests.cluster.tiers import ROOT

DOCS = ROOT / "docs"
SOURCES = ROOT / "operator"
CAMEL = re.compile(r"[A-Z][a-z]+[A-Za-z0-9]*")
# Calls that take a reason, and its place among the arguments.
PLACES = {"with_condition": 1, "with_history": 1, "fail": 2, "restart": 2, "Verdict": 0}
FAILURES = {name for reason in reasons.FAILURES for name in re.findall(r"\w+", reason.name)}


def literals() -> Iterator[str]:
    """Reasons that are written out in a call."""
    for path in (*SOURCES.glob("ddpjob/plan/*.py"), *SOURCES.glob("ddpjob_agent/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            place = PLACES.get(node.func.id)
            if place is not None and len(node.args) > place:
                for part in ast.walk(node.args[place]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_every_reason_is_known() -> None:
    found = set(literals())
    assert {"Rendezvous", "Exception"} <= found, "the agent's"
    # Success is no failure: the agent's name for it, and that of an attempt in the history.
    assert found - {reasons.COMPLETED, "Succeeded"} <= FAILURES


# What kubelets and container runtimes give where the agent left no reason.
FOREIGN = {
    *("Error", "StartError", "ContainerCannotRun", "ContainerStatusUnknown", "Unknown"),
    *("DeadlineExceeded", "Terminated", "AppArmor", "SysctlForbidden", "UnknownReason"),
    *("PodLevelResourcesNotSupported", "VolumeAttachmentLimitExceeded"),
}


def test_a_rule_of_failure_policy_may_name_every_reason_of_a_failure() -> None:
    assert len(set(REASONS)) == len(REASONS)
    assert set(REASONS) == FAILURES | FOREIGN
    assert set(budget.START_ERRORS) <= FOREIGN


def test_every_reason_of_a_condition_is_in_the_table_once() -> None:
    made = [each for each in vars(reasons).values() if isinstance(each, reasons.Reason)]
    assert Counter(made) == Counter(reasons.CONDITIONS)
    names = Counter((each.condition, each.name) for each in reasons.CONDITIONS)
    assert set(names.values()) == {1}


def test_the_tables_are_those_of_the_page() -> None:
    text = (DOCS / "operations.md").read_text()
    assert tables.with_tables(text) == text
    assert "| [MaxRestartsExceeded](reasons.md#maxrestartsexceeded) |" in text


def test_a_table_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="conditions"):
        tables.with_tables("no table")


def test_every_state_and_no_other_has_a_row() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text[text.index("| `status.state`") :].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    states = {name for row in rows for name in row.split(", ")}
    annotation = api.Status.model_fields["state"].annotation
    assert states == set(CAMEL.findall(str(annotation))) - {"Literal", "Optional"}


def test_every_reason_has_an_anchor_of_its_own_in_lower_case() -> None:
    anchors = links.anchors(DOCS / "reasons.md")
    for reason in (*reasons.CONDITIONS, *reasons.FAILURES):
        assert {name.lower() for name in reason_pages.names(reason.name)} <= anchors
    assert (DOCS / "reasons.md").read_text() == reason_pages.page()


def test_a_failure_says_what_to_do() -> None:
    assert all(reason.do for reason in reasons.FAILURES)
    bad = [each for each in reasons.CONDITIONS if each.condition == "Failed"]
    assert bad and all(reason.do for reason in bad)
