"""Finds a call of `launch` that would be made again by whoever imports its script."""

import ast
import inspect
from pathlib import Path


def unguarded_line(script: Path) -> int | None:
    """Return the line of the program's script that this call comes from, if an import runs it too.

    None if the call stands below an `if`, such as that of `__name__`, or comes from elsewhere.
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
    tests = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    is_tested = any(test.lineno <= line <= (test.end_lineno or 0) for test in tests)
    return None if is_tested else line
