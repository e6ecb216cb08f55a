"""The source of a notebook's function as a module: its text, and that of all that it uses.

A global name in it may stand for an import, for a function or class of the notebook, or for a
constant. Whatever else it stands for cannot be sent.
"""

import __future__

import ast
import builtins
import inspect
import io
import linecache
import math
import os
import symtable
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ddpjob.client.arguments import is_endless, refusal

# Characters of a constant.
MAX_CONSTANT = 64 * 1024
# Names that IPython puts among the builtins.
_OF_NOTEBOOKS = ("display", "get_ipython")
# Types of constants that torch has by name; each prints as that.
_TORCH_CONSTANTS = ("dtype", "layout", "memory_format")
# Names that the module has by itself. Others with such underscores may be the notebook's.
_OF_MODULES = {
    *("__name__", "__doc__", "__file__", "__cached__"),
    *("__package__", "__loader__", "__spec__", "__builtins__"),
}
_HEAD = '"""Defined in a notebook, and sent by ddpjob.launch."""'


def module_source(function: FunctionType) -> str:
    """Return a module that defines the function. Constants have the values of this moment.

    Raises InvalidJob, which names what cannot be sent.
    """
    sender = _Sender(function)
    sender.define(function.__name__, function)
    future = []
    if function.__code__.co_flags & __future__.annotations.compiler_flag:
        future = ["from __future__ import annotations"]
    parts = [_HEAD, *future, "\n".join(sender.imports), "\n".join(sender.constants)]
    return "\n\n".join(filter(None, [*parts, *sender.definitions])) + "\n"


class _Sender:
    """Collects a function and all that it uses, each thing before it is needed."""

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        self._seen: set[str] = set()
        self.imports: dict[str, None] = {}
        self.constants: list[str] = []
        self.definitions: list[str] = []

    def define(self, name: str, value: Any) -> None:
        """Add the definition of a function or class, and before it what it uses."""
        self._seen.add(name)
        if value.__name__ != name:
            raise refusal(f"{name} is another name of {value.__name__}; use that one")
        if isinstance(value, FunctionType) and (outer := value.__code__.co_freevars):
            raise refusal(f"{name} uses {outer[0]}, a variable of the function that made it")
        text = _definition(name, value, self._globals.get("In"))
        for used in _global_names(text):
            if used in _OF_NOTEBOOKS:
                raise refusal(f"{name} uses {used}, which only notebooks have")
            if used in self._globals and not _is_builtin(used, self._globals[used]):
                self._add(used, self._globals[used], by=name)
            elif not hasattr(builtins, used):
                raise refusal(f"{name} uses the name {used}, which is not defined")
        for import_line in _submodules(text, self._globals):
            self.imports[import_line] = None
        self.definitions.append(text)

    def _add(self, name: str, value: Any, by: str) -> None:
        if name in self._seen:
            return
        if line := _import(name, value):
            self.imports[line] = None
        elif _is_function(value) or isinstance(value, type):
            self.define(name, inspect.unwrap(value))
            return
        elif is_endless(value) or (text := _literal(value)) is None:
            kind = type(value).__name__
            verb = "import" if callable(value) else "build"
            raise refusal(
                f'{by} uses the notebook variable "{name}" ({kind}), which cannot be sent; '
                f"{verb} it inside {by}"
            )
        elif len(text) > MAX_CONSTANT:
            raise refusal(
                f'{by} uses the notebook variable "{name}", which has {len(text):,} characters, '
                f"and {MAX_CONSTANT:,} are the limit; write it into a file of the folder"
            )
        else:
            self.constants.append(f"{name} = {text}")
        self._seen.add(name)


def _is_builtin(name: str, value: Any) -> bool:
    """Return whether a global is the builtin of its name, which IPython wraps: `open`, `exit`."""
    builtin = getattr(builtins, name, None)
    wrapped = inspect.unwrap(value) if callable(value) else value
    is_ipythons = type(value).__module__.startswith("IPython.")
    return builtin is not None and (wrapped is builtin or is_ipythons)


def _is_function(value: Any) -> bool:
    return isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType)


def _definition(name: str, value: Any, history: Any) -> str:
    """Return the text that defines a function or class in its cell. Raises InvalidJob.

    `history` is IPython's list of the cells that were run, if there is one.
    """
    codes = [value.__code__] if isinstance(value, FunctionType) else list(_codes_of(value))
    cells = [cell for code in codes for cell in _cells(code.co_filename)]
    if isinstance(value, type) and not codes and isinstance(history, list):
        # Such as a dataclass without methods of its own: the last cell with that name made it.
        cells = [cell for cell in reversed(history) if isinstance(cell, str)]
    for cell in cells:
        if node := _find(cell, name, value):
            return _text_of(cell, node)
    raise refusal(f"the source of {name} is not known; move it into a module of the folder")


def _codes_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of the methods that were written in the class itself."""
    for value in vars(kind).values():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, FunctionType) and _cells(function.__code__.co_filename):
            yield function.__code__


def _cells(path: str) -> list[str]:
    """Return the text that a notebook has run under this name, if it is none of a file's."""
    text = "" if os.path.exists(path) else "".join(linecache.getlines(path))
    return [text] if text else []


def _find(cell: str, name: str, value: Any) -> ast.stmt | None:
    """Return the last definition of this name in a cell; of a function, that on its line."""
    kind = ast.ClassDef if isinstance(value, type) else ast.FunctionDef
    try:
        nodes = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, kind)]
    except SyntaxError:
        return None
    nodes = [node for node in nodes if node.name == name]
    if isinstance(value, FunctionType):
        nodes = [node for node in nodes if _first_line(node) == value.__code__.co_firstlineno]
    return nodes[-1] if nodes else None


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _text_of(cell: str, node: ast.stmt) -> str:
    """Return the lines of a definition as they stand: to indent a line may change a text in it."""
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    # Not `splitlines`, which ends lines where Python does not, as at a form feed or at U+2028.
    lines = list(io.StringIO(cell, newline=None))[_first_line(node) - 1 : node.end_lineno]
    blanks = lines[0][: -len(lines[0].lstrip(" \t\f"))]
    is_indented = blanks.rpartition("\f")[2] != ""  # Python counts from the last form feed
    return ("if True:\n" if is_indented else "") + "".join(lines).rstrip()


def _global_names(text: str) -> list[str]:
    """Return the global names that a definition uses, in it or while it is made."""
    table = symtable.symtable(text, "<cell>", "exec")
    found = [s.get_name() for s in table.get_symbols() if s.is_referenced()]
    tables = list(table.get_children())
    while tables:
        inner = tables.pop()
        tables += inner.get_children()
        found += [
            symbol.get_name()
            for symbol in inner.get_symbols()
            if symbol.is_global() and symbol.is_referenced()
        ]
    return sorted(set(found) - _OF_MODULES)


def _import(name: str, value: Any) -> str:
    """Return the import that gives this value this name, or an empty text."""
    if isinstance(value, ModuleType):
        module = value.__name__
        if module == "__main__" or sys.modules.get(module) is not value:
            return ""
        return f"import {module}" if module == name else f"import {module} as {name}"
    module, attribute = _home(value)
    if module in ("__main__", "builtins") or module not in sys.modules:
        return ""
    if getattr(sys.modules[module], attribute, None) is not value:
        return ""
    line = f"from {module} import {attribute}"
    return line if attribute == name else f"{line} as {name}"


def _home(value: Any) -> tuple[str, str]:
    """Return the module that defines a value, and its name there, if it knows them."""
    if type(value).__module__ == "torch" and type(value).__name__ in _TORCH_CONSTANTS:
        return "torch", repr(value).removeprefix("torch.")
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return (module, name) if isinstance(module, str) and isinstance(name, str) else ("", "")


def _submodules(text: str, names: Mapping[str, Any]) -> Iterator[str]:
    """Yield imports of the modules that the text reaches through others: `xml.etree` by `xml`."""
    for node in ast.walk(ast.parse(text)):
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        module = names.get(node.id) if isinstance(node, ast.Name) else None
        for part in path:
            if not isinstance(module, ModuleType):
                break
            found = sys.modules.get(f"{module.__name__}.{part}")
            if found is not None and found is getattr(module, part, None):
                yield f"import {module.__name__}.{part}"
            module = found


def _literal(value: Any, levels: int = 32) -> str | None:
    """Return the text of a constant as Python writes it, or None for another kind of value."""
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if levels == 0:
        return None
    if type(value) in (list, tuple):
        parts = [_literal(part, levels - 1) for part in value]
        inner = "".join(f"{part}, " for part in parts)
        text = f"[{inner}]" if type(value) is list else f"({inner})"
        return None if None in parts else text
    if type(value) is dict:
        pairs = [(_literal(k, levels - 1), _literal(v, levels - 1)) for k, v in value.items()]
        text = "{" + "".join(f"{key}: {part}, " for key, part in pairs) + "}"
        return None if any(None in pair for pair in pairs) else text
    return None
