"""A call of a Python function as it is sent to a job: a reference or a source, and JSON arguments.

A function of a module is sent by its name, because the folder with the module is sent too. One of a
notebook is sent by its source (notebook_source.py). Nothing is pickled: what a pickle runs depends
on the versions of both sides, and a result of a pod is anybody's bytes.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from types import FunctionType
from typing import Any

from ddpjob.code.notebook_source import module_source
from ddpjob.errors import InvalidJob

# The files that are sent beside the user's own. The second one has what is defined in a notebook.
SCRIPT, NOTEBOOK_MODULE = "ddpjob_call.py", "ddpjob_notebook"


@dataclass(frozen=True)
class Call:
    """A call of a function, as it is sent."""

    module: str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    source: str = ""
    """The text of NOTEBOOK_MODULE; empty if the function has a module of its own."""

    def files(self) -> dict[str, bytes]:
        """Return the files that are sent for the call, by their paths."""
        sent = {"module": self.module, "name": self.name, "args": self.args, "kwargs": self.kwargs}
        body = resources.files("ddpjob.code").joinpath("call_script.py").read_text("utf-8")
        # Python's own literal of a text: no argument ends it. Tracebacks do not show this line.
        end = f'\n\nSENT = {json.dumps(sent)!a}\n\nif __name__ == "__main__":\n    run(SENT)\n'
        found = {SCRIPT: body + end}
        if self.source:
            found[f"{NOTEBOOK_MODULE}.py"] = self.source
        return {path: text.encode() for path, text in found.items()}


def describe(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path
) -> Call:
    """Return the call as it is sent. `folder` is what is sent with it.

    Raises InvalidJob for a function that cannot be sent, or arguments that are no JSON or that the
    function does not take.
    """
    while isinstance(function, partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    function = _plain_function(function)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        text = f"{function.__name__}() cannot be called so: {error}"
        if "unexpected keyword" in str(error):
            text += (
                "; fields of the job belong into spec={...}, a namespace into client=Client(...)"
            )
        raise InvalidJob("launch", text) from None
    _check_arguments(args, kwargs)
    file = Path(function.__code__.co_filename)
    if file.is_file():
        return Call(_module_of(function, file, folder), function.__qualname__, args, kwargs)
    return Call(NOTEBOOK_MODULE, function.__name__, args, kwargs, module_source(function))


def _check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidJob for an argument that is no JSON."""
    named = [*((f"argument {i}", value) for i, value in enumerate(args, start=1)), *kwargs.items()]
    for name, value in named:
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            text = f"{name} cannot be sent: {error}"
            rule = f"{text}; arguments are numbers, texts, lists and dicts of them"
            raise InvalidJob("launch", rule) from None


def _plain_function(function: Any) -> FunctionType:
    """Return the function below its decorators. Raises InvalidJob if it has no name to call."""
    name = getattr(function, "__qualname__", None) or repr(function)
    found = inspect.unwrap(function) if callable(function) else None
    if not isinstance(found, FunctionType):
        raise InvalidJob("launch", f"{name} is a {type(function).__name__}; send a function")
    if "<" in found.__qualname__:  # <lambda>, <locals>
        text = f"{name} has no name by which it can be called; define it at the top level"
        raise InvalidJob("launch", text)
    return found


def _module_of(function: FunctionType, file: Path, folder: Path) -> str:
    """Return the name by which the job imports the function's module. Raises InvalidJob."""
    file, folder = file.resolve(), folder.resolve()
    is_script = function.__module__ == "__main__"
    module = file.stem if is_script else function.__module__
    if not is_script and not file.is_relative_to(folder):
        return module  # a package that is installed here, and in the image
    parts = module.split(".")
    if file.stem == "__init__":
        parts.append("__init__")
    if file == folder.joinpath(*parts).with_suffix(".py"):
        return module
    root = file.parents[len(parts) - 1]
    text = f"{function.__name__} is in {file}, which is not {module} in the folder that is sent"
    raise InvalidJob("launch", f"{text}; code={str(root)!r} sends the right one")
