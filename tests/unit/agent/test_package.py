"""What images of other people ask of the sources."""

import ast
import sys
from pathlib import Path

import pytest

from tests.agentpod import SOURCES


@pytest.mark.parametrize("source", sorted(SOURCES.rglob("*.py")), ids=lambda path: path.name)
def test_mounted_files_are_python_3_8_and_import_the_standard_library_alone(source: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(source.read_text(), feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "ours").split(".")[0])
    assert names <= {*sys.stdlib_module_names, "ddpjob_agent"}
