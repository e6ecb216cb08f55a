"""Every reason that a status can give stands in docs/operations.md."""

import ast
import re
from collections.abc import Iterator

from ddpjob import api
from ddpjob.plan.observed import DEADLINE, DISRUPTIONS
from tests.cluster.tiers import ROOT

DOCS = ROOT / "docs"
SOURCES = ROOT / "operator" / "ddpjob"
CAMEL = re.compile(r"[A-Z][a-z]+[A-Za-z0-9]*")
# Calls that take a reason, and its place among the arguments.
PLACES = {"with_condition": 3, "with_history": 1, "fail": 2, "restart": 2, "Verdict": 0}


def said() -> Iterator[str]:
    """Reasons that are written out in a call."""
    for path in (*(SOURCES / "plan").glob("*.py"), *SOURCES.with_name("ddpjob_agent").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            place = PLACES.get(node.func.id)
            if place is not None and len(node.args) > place:
                argument = node.args[place]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def test_every_reason_is_explained() -> None:
    reasons = {*said(), *DISRUPTIONS, DEADLINE, "OOMKilled", "InitContainerFailed"}
    reasons.discard("Completed")  # the agent's word for success
    assert {"MaxRestartsExceeded", "Rendezvous", "Suspending", "SpecChanged"} <= reasons
    text = (DOCS / "operations.md").read_text()
    missing = sorted(reason for reason in reasons if not re.search(rf"\b{reason}\b", text))
    assert missing == []


def test_every_state_and_no_other_has_a_row() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text[text.index("| `status.state`") : text.index("## When a rank fails")]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    states = {name for row in rows for name in row.split(", ")}
    annotation = api.Status.model_fields["state"].annotation
    assert states == set(CAMEL.findall(str(annotation))) - {"Literal", "Optional"}
