"""Finds out whether a script would notice that torch was imported before it began."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from importlib.machinery import PathFinder
from typing import Iterator, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.warm import READ_AT_IMPORT

# So many files of the script's own are read, each of at most so many bytes.
MOST_FILES, FILE_BYTES = 200, 2**20
# Methods of os.environ, and functions of os, that change the variable named first.
SETTERS = ("setdefault", "putenv", "unsetenv", "pop", "__setitem__")


def why_cold(words: Sequence[str], cwd: str) -> str:
    """Why `[-m, MODULE, …]` or `[SCRIPT, …]` is to be started as a process of its own; "": warm."""
    folder, path = cwd, ""
    if words[0] != "-m":
        path = os.path.realpath(os.path.join(cwd, words[0]))
        folder = os.path.dirname(path)
        if not os.path.isfile(path):
            return f"no script {path!r}"
    hidden = next(hides(folder), "")
    if hidden:
        return f"{hidden} hides a module that is imported already"
    seen: set[str] = set()
    todo = [path] if path else [*sources_of(folder, words[1] + ".__main__")]
    while todo and len(seen) < MOST_FILES:
        file = todo.pop()
        if not file or file in seen:
            continue
        seen.add(file)
        with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError):
            if os.path.getsize(file) > FILE_BYTES:
                return f"{file} is too long to be read for what it sets"
            with open(file, "rb") as source:
                content = source.read()
            try:
                tree = ast.parse(content)
            except (SyntaxError, ValueError):
                if file == path:
                    return f"{file} is no Python"  # which it says best itself
                raise
            for line, name in variables(tree):
                if not name or READ_AT_IMPORT.match(name):
                    what = name or "variables that are not known beforehand"
                    return f"{file}:{line} sets {what}, which may be read at import"
            for base, module in imports(tree, folder, file):
                todo += sources_of(base, module)
    return ""


def hides(folder: str) -> Iterator[str]:
    """The modules in a folder that the script would get in place of those imported already."""
    with contextlib.suppress(OSError):
        stems = {entry.partition(".")[0] for entry in os.listdir(folder)} - {"__main__"}
        for stem in sorted(stems & {name.partition(".")[0] for name in sys.modules}):
            spec = PathFinder.find_spec(stem, [folder])
            if spec is not None and spec.loader is not None:  # a folder without __init__ comes last
                yield str(spec.origin)


def sources_of(folder: str, module: str) -> Iterator[str]:
    """The sources of a module of the script's own, and of the packages that it is in."""
    path = folder
    for part in module.split("."):
        path = os.path.join(path, part)
        yield from filter(os.path.isfile, (f"{path}.py", f"{path}/__init__.py"))


def imports(tree: ast.AST, folder: str, file: str) -> Iterator[tuple[str, str]]:
    """The modules that are imported anywhere in a source: a folder, and a name from there on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((folder, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = file if node.level else folder
            for _ in range(node.level):
                base = os.path.dirname(base)
            module = [node.module] if node.module else []
            yield from ((base, ".".join([*module, name.name])) for name in node.names)


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each environment variable that a source changes; "": any."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            for target in getattr(node, "targets", None) or [node.target]:  # type: ignore[union-attr]
                if isinstance(target, ast.Subscript) and is_environ(target.value):
                    yield node.lineno, text(target.slice)
                elif is_environ(target):
                    yield node.lineno, ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in ("putenv", "unsetenv") or is_environ(node.func.value):
                if name in SETTERS:
                    yield node.lineno, text(node.args[0]) if node.args else ""
                elif name == "update":
                    yield from ((node.lineno, word) for word in updated(node))


def updated(call: ast.Call) -> Iterator[str]:
    """The names in `os.environ.update(…)`; "" where they are not written out."""
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            yield from (text(key) if key else "" for key in argument.keys)
        else:
            yield ""
    yield from (keyword.arg or "" for keyword in call.keywords)


def is_environ(node: ast.AST) -> bool:
    """Whether an expression is `os.environ`, or `environ`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("environ", "environb")


def text(node: ast.AST) -> str:
    """The text that a constant is; "" where it is none."""
    node = getattr(node, "value", node) if type(node).__name__ == "Index" else node  # Python 3.8
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
