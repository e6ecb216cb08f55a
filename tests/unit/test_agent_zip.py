"""The zip that every job's ConfigMap carries: small, always the same, and true to the sources."""

import ast
import io
import subprocess
import sys
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
        running = ast.parse(compact(source.read_text()))
        absent = imported(ast.parse(source.read_text())) - imported(running)
        for node in ast.walk(running):
            if isinstance(node, ast.AnnAssign):
                node.annotation = ast.Constant("")
        used = {node.id for node in ast.walk(running) if isinstance(node, ast.Name)}
        assert not absent & used, source.name


def imported(tree: ast.AST) -> set[str]:
    """The names that a source imports, wherever it does."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


def test_the_zip_is_small() -> None:
    """Every job stores one in its cluster."""
    assert len(load_agent().archive) <= 54 * 1024


def test_the_zip_is_always_the_same() -> None:
    sources = {"__main__.py": "import ddpjob_agent\n", "__init__.py": "", "hooks/__init__.py": ""}
    backwards = dict(reversed(sources.items()))
    assert pack(sources) == pack(backwards) != pack({**sources, "main.py": ""})


def test_the_zip_has_every_source_line_by_line() -> None:
    with zipfile.ZipFile(io.BytesIO(load_agent().archive)) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    words = members.pop("modules").split("\0")
    found = dict(zip(words[::2], words[1::2], strict=True))
    found |= {name.removeprefix("ddpjob_agent/"): text for name, text in members.items()}
    sources = {path.relative_to(PACKAGE).as_posix(): path for path in SOURCES}
    del sources["hooks/__init__.py"]  # a folder on PYTHONPATH, no package
    assert found.keys() == sources.keys()
    for name, path in sources.items():
        assert what_runs(found[name]) == what_runs(path.read_text()), name


def test_a_traceback_names_the_line_of_the_source(tmp_path: Path) -> None:
    program = tmp_path / "agent.pyz"
    sources = {
        "__main__.py": (PACKAGE / "__main__.py").read_text(),
        "__init__.py": "",
        "hooks/__init__.py": "",
        "launch.py": "# why\n\ndef launch_torchrun(arguments: list) -> int:\n    return 1 / 0\n",
    }
    program.write_bytes(pack(sources))
    ended = subprocess.run(
        [sys.executable, str(program), "launch", "cold"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert f'File "{program}/ddpjob_agent/launch.py", line 4, in launch_torchrun\n' in ended.stderr
