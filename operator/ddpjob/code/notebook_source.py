"""The source of a notebook's function as a module: its text, and that of all that it uses.

A global name in it may stand for an import, for a function or class of the notebook, or for a
constant. Whatever else it stands for cannot be sent.
"""

import __future__

import ast
import builtins
import inspect
import symtable
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from ddpjob.errors import InvalidJob

# Types of constants that torch has by name; each prints as that.
_TORCH_CONSTANTS = ("dtype", "layout", "memory_format")
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
            raise _refusal(f"{name} is another name of {value.__name__}; use that one")
        if isinstance(value, FunctionType) and (outer := value.__code__.co_freevars):
            raise _refusal(f"{name} uses {outer[0]}, a variable of the function that made it")
        text = _definition(value, self._globals.get("In", ()))
        for used in _global_names(text):
            if used in self._globals and not _is_builtin(used, self._globals[used]):
                self._add(used, self._globals[used], by=name)
            elif not hasattr(builtins, used):
                raise _refusal(f"{name} uses the name {used}, which is not defined")
        for import_line in _submodules(text, self._globals):
            self.imports[import_line] = None
        self.definitions.append(text)

    def _add(self, name: str, value: Any, by: str) -> None:
        if name in self._seen:
            return
        if line := _import(name, value):
            self.imports[line] = None
        elif isinstance(inspect.unwrap(value), FunctionType | type):
            self.define(name, inspect.unwrap(value))
        elif (text := _literal(value)) is not None:
            self.constants.append(f"{name} = {text}")
        else:
            kind = type(value).__name__
            verb = "import" if callable(value) else "build"
            raise _refusal(
                f'{by} uses the notebook variable "{name}" ({kind}), which cannot be sent; '
                f"{verb} it inside {by}"
            )
        self._seen.add(name)


def _refusal(rule: str) -> InvalidJob:
    return InvalidJob("launch", rule)


def _is_builtin(name: str, value: Any) -> bool:
    """Return whether a global is the builtin of its name, which IPython wraps: `open`, `exit`."""
    builtin = getattr(builtins, name, None)
    wrapped = inspect.unwrap(value) if callable(value) else value
    is_ipythons = type(value).__module__.startswith("IPython.")
    return builtin is not None and (wrapped is builtin or is_ipythons)


def _definition(value: Any, history: Sequence[str]) -> str:
    """Return the text that defines a function, or a class, in its cell. Raises InvalidJob.

    `history` is IPython's list of the cells that were run.
    """
    try:
        is_class = isinstance(value, type)
        text = _class_in(history, value.__name__) if is_class else inspect.getsource(value)
    except OSError:
        text = ""
    if not text:
        rule = f"the source of {value.__name__} is not known; move it into a module of the folder"
        raise _refusal(rule)
    # Its lines stay as they are, because to indent them less may change a text in them.
    return ("if True:\n" if text[0].isspace() else "") + text.rstrip()


def _class_in(history: Sequence[str], name: str) -> str:
    """Return the last definition of a class of this name; empty if there is none."""
    for cell in reversed(history):
        try:
            nodes = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ClassDef)]
        except SyntaxError:
            continue
        if found := [node for node in nodes if node.name == name]:
            node = found[-1]
            node.lineno = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return ast.get_source_segment(cell, node, padded=True) or ""
    return ""


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
    return sorted({name for name in found if not name.startswith("__")})


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


def _literal(value: Any) -> str | None:
    """Return the text of a constant as Python writes it, or None for another kind of value."""
    try:
        text = repr(value)
        return text if ast.literal_eval(text) == value else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
