"""Calls the function that `launch` has sent, in every rank. Rank 0 leaves what it returns.

`launch` sends the text of this file with the job's code. So it runs in any image: it needs Python
3.8 or newer, and nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def run(sent: str) -> None:
    """Call the function that the JSON in `sent` names, and leave its result."""
    call = json.loads(sent)
    if os.getcwd() not in sys.path:  # the script may lie elsewhere than the code
        sys.path.insert(0, os.getcwd())
    function: Any = importlib.import_module(call["module"])
    for name in call["name"].split("."):
        function = getattr(function, name)
    value = function(*call["args"], **call["kwargs"])
    if os.environ.get("RANK", "0") == "0":
        leave(value, call["name"])


def leave(value: Any, name: str) -> None:
    """Write the value as JSON into the result file. A value that is no JSON fails no training."""
    path = os.environ.get("DDPJOB_RESULT_FILE")
    if not path:
        say("the result is lost: the operator is older than the program that launched the job")
        return
    try:
        text = json.dumps(value, default=plain, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as problem:
        text = f"{name} returned no JSON: {problem}"
        say(f"{text}. Return numbers, texts, lists and dicts of them")
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def plain(value: Any) -> Any:
    """The numbers of an array or a tensor. Raises TypeError for another object."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} in it")


def say(text: str) -> None:
    """Print one line into the rank's log."""
    print(f"ddpjob: {text}", file=sys.stderr, flush=True)


class Finder:
    """Finds a stand-in for ddpjob in an image without it, for scripts that call `launch` below."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of ddpjob, which no other finder has, or of a module below it."""
        is_within = isinstance(sys.modules.get(name.rpartition(".")[0]), StandIn)
        if name == "ddpjob" or is_within:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of a spec."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module makes its names when they are imported."""


class StandIn(ModuleType):
    """A module whose names can be imported, and stand in annotations, but not be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(absent(f"{self.__name__}.{name}"))
        found = NotHere(name, (Exception,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class NotHere(type):
    """The type of a name of the stand-in."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(absent(f"{cls.__module__}.{cls.__name__}"))


def absent(name: str) -> str:
    """Return why a name of ddpjob cannot be used."""
    return (
        f"{name} cannot be used in a rank, because the image has no ddpjob: install it there, or "
        'use it below if __name__ == "__main__" alone'
    )


# Here, and not in `run`, because the children that a data loader spawns import this file too.
sys.meta_path.append(Finder())
