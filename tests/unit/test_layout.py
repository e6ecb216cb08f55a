"""Promises about the tree itself."""

import ast
import operator as standard_library
import sys

from tests.cluster.tiers import ROOT

PACKAGE = ROOT / "operator" / "ddpjob"


def test_the_source_root_is_no_package() -> None:
    """An __init__.py there would make it `operator`, in the standard library's place."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert standard_library.add(1, 2) == 3


def test_only_handlers_imports_kopf_and_the_agent_imports_nothing_of_ours() -> None:
    for path in PACKAGE.rglob("*.py"):
        found = imported(path.read_text())
        if path.name != "handlers.py":
            assert "kopf" not in found, path
    for path in PACKAGE.with_name("ddpjob_agent").rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))  # of other people's images
        assert imported(path.read_text()) <= {*sys.stdlib_module_names, "ddpjob_agent"}, path


def imported(source: str) -> set[str]:
    """Top-level names of everything that the source imports at its top level."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_a_long_file_of_the_operator_says_why() -> None:
    for path in (ROOT / "operator").rglob("*.py"):
        text = path.read_text()
        if len(text.splitlines()) > 400:
            reason = ast.get_docstring(ast.parse(text)) or ""
            assert "longer than 400 lines because" in " ".join(reason.split()), path
