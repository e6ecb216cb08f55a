"""What images of other people ask of the sources."""

import ast
import sys
from pathlib import Path

import pytest

from tests.agentpod import SOURCES as PACKAGE

SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_mounted_files_are_python_3_8(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_mounted_files_import_the_standard_library_alone(source: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "ours").split(".")[0])
    assert names <= {*sys.stdlib_module_names, "ddpjob_agent"}
