"""Every reason of a status stands in `plan/reasons.py`, and is explained in docs/reasons.md."""

import ast
import re
from collections.abc import Iterator

import pytest

from ddpjob import api
from ddpjob.api.failure_policy import REASONS
from ddpjob.plan import budget, reasons
from tests import links
from tests.cluster.tiers import ROOT

DOCS = ROOT / "docs"
SOURCES = ROOT / "operator"
CAMEL = re.compile(r"[A-Z][a-z]+[A-Za-z0-9]*")
# Calls that take a reason, and its place among the arguments.
PLACES = {"with_condition": 1, "with_history": 1, "fail": 2, "restart": 2, "Verdict": 0}
NAMES = {name: value for name, value in vars(reasons).items() if name.isupper()}
CONDITIONS = {each.name for each in NAMES.values() if isinstance(each, reasons.Reason)}
FAILURES = {each for each in NAMES.values() if isinstance(each, str)} - {reasons.COMPLETED}


def literals() -> Iterator[str]:
    """Reasons that are written out in a call."""
    for path in (*SOURCES.glob("ddpjob/plan/*.py"), *SOURCES.glob("ddpjob_agent/**/*.py")):
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


def test_every_reason_has_a_section_and_no_other_has() -> None:
    anchors = {name for name in links.anchors(DOCS / "reasons.md") if "-" not in name}
    kubelets = {"Error", "StartError", "ErrImagePull", "ImagePullBackOff"}
    assert {name.lower() for name in CONDITIONS | FAILURES | kubelets} == anchors


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_the_section_of_a_failure_says_whether_it_counts(name: str) -> None:
    text = (DOCS / "reasons.md").read_text()
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    what = "does not count" if name in reasons.UNCOUNTED else "counts"
    assert f"A failure that {what} towards `maxRestarts`" in section
    assert "What to do: " in section


def test_every_state_and_no_other_has_a_row() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text[text.index("| `status.state`") :].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    states = {name for row in rows for name in row.split(", ")}
    annotation = api.Status.model_fields["state"].annotation
    assert states == set(CAMEL.findall(str(annotation))) - {"Literal", "Optional"}
