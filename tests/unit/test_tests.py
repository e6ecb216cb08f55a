"""How the tests are arranged: what they share stands in modules that hold no test."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.tiers import ROOT


def shared(source: str) -> Iterator[str]:
    """The test modules that this source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "tests" and parts[-1].startswith("test_"):
                yield name


def sources() -> list[Path]:
    """Every module of the tests and of the benchmarks, which use the tests' helpers."""
    return [path for part in ("tests", "benchmarks") for path in (ROOT / part).rglob("*.py")]


def test_no_module_imports_from_a_test_module() -> None:
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources()
        for name in shared(path.read_text())
    }
    assert not found
