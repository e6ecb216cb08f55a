"""The zip that every job's ConfigMap carries: small, always the same, and true to the sources."""

import ast
import io
import zipfile
from pathlib import Path

import pytest

import ddpjob_agent
from ddpjob.controller.controller import load_agent
from ddpjob.pods.agent_zip import compact, pack

PACKAGE = Path(ddpjob_agent.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def for_readers(child: ast.stmt) -> bool:
    """Whether a statement is a docstring, or imports what only annotations need."""
    if isinstance(child, ast.If):
        return ast.unparse(child.test) == "TYPE_CHECKING"
    if isinstance(child, ast.ImportFrom):
        return child.module == "typing"
    return isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


def what_runs(source: str) -> tuple[str, list[int]]:
    """The tree that Python 3.8 reads, without what only readers need; and its lines."""
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        found = getattr(node, "body", None)
        body: list[ast.stmt] = found if isinstance(found, list) else []
        body[:] = [child for child in body if not for_readers(child)]
        for i, child in enumerate(body):
            if isinstance(child, ast.AnnAssign) and child.value and not is_class(node):
                body[i] = ast.Assign([child.target], child.value, lineno=child.lineno)
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)]
    return ast.dump(tree), lines


def is_class(node: ast.AST) -> bool:
    """Dataclasses read the annotations of their fields."""
    return isinstance(node, ast.ClassDef)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_what_runs_in_a_pod_is_what_the_source_says_line_by_line(source: Path) -> None:
    text = source.read_text()
    assert what_runs(compact(text)) == what_runs(text)


def test_only_what_runs_is_left() -> None:
    source = '''"""What it does."""
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

class Field:
    """What it is."""
    size: int = 1  # in bytes

def shown(frame: "FrameType | None", *, of: dict[str, Any]) -> str:
    """The text."""
    names: list[str] = []
    return f"a {{b}} {of!r:>4}" if frame is None else "…" + str(1 if names else 2)
'''
    assert [line for line in compact(source).splitlines() if line] == [
        "class Field:",
        " size:int=1",
        "def shown(frame,*,of):",
        " names=[]",
        ' return f"a {{b}} {of!r:>4}"if frame is None else"…"+str(1 if names else 2)',
    ]


def test_a_body_that_is_nothing_else_keeps_its_docstring() -> None:
    source = 'class Broken(ValueError):\n    """What is wrong."""\n'
    assert compact(source) == 'class Broken(ValueError):\n """What is wrong."""\n'


def test_what_only_annotations_need_is_used_by_nothing_else() -> None:
    """The fields of a dataclass have texts for annotations: nothing looks the names up."""
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        absent = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and for_readers(node)
            for part in ast.walk(node)
            if isinstance(part, ast.Import | ast.ImportFrom)
            for alias in part.names
        }
        running = ast.parse(compact(source.read_text()))
        for node in ast.walk(running):
            if isinstance(node, ast.AnnAssign):
                node.annotation = ast.Constant("")
        used = {node.id for node in ast.walk(running) if isinstance(node, ast.Name)}
        assert not absent & used, source.name


def test_the_zip_is_small() -> None:
    """Every job stores one in its cluster."""
    assert len(load_agent().archive) <= 25 * 1024


def test_the_zip_is_always_the_same() -> None:
    sources = {"__main__.py": "import ddpjob_agent\n", "__init__.py": "", "hooks/__init__.py": ""}
    backwards = dict(reversed(sources.items()))
    assert pack(sources) == pack(backwards) != pack({**sources, "main.py": ""})


def test_the_zip_has_every_source_where_python_looks_for_it() -> None:
    with zipfile.ZipFile(io.BytesIO(load_agent().archive)) as archive:
        found = {member.filename for member in archive.infolist()}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    paths = {path.relative_to(PACKAGE).as_posix() for path in SOURCES} - {"hooks/__init__.py"}
    assert found == {"__main__.py"} | {f"ddpjob_agent/{path}" for path in paths - {"__main__.py"}}
