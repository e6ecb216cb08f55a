"""Finds a call of `launch` that would be made again by whoever imports its script."""

import ast
import inspect
from pathlib import Path


def unguarded_line(script: Path) -> int | None:
    """Return the line of the program's script that this call comes from, if an import runs it too.

    None if the call stands below `if __name__ == "__main__"`, or comes from elsewhere.
    """
    line, frame = None, inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        is_main = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if is_main and Path(code.co_filename).resolve() == script.resolve():
            line = frame.f_lineno
        frame = frame.f_back
    if line is None:
        return None
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, ValueError, SyntaxError):  # it has changed since it was started
        return None
    return None if any(_is_guard(node, line) for node in ast.walk(tree)) else line


def _is_guard(node: ast.AST, line: int) -> bool:
    """Return whether the line runs only where a test of `__name__` has allowed it."""
    if not isinstance(node, ast.If) or not node.lineno <= line <= (node.end_lineno or 0):
        return False
    tested = (part.id for part in ast.walk(node.test) if isinstance(part, ast.Name))
    return "__name__" in tested
