"""Calls the function that `launch` has sent, in every rank. Rank 0 leaves what it returns.

`launch` sends the text of this file with the job's code. So it runs in any image: it needs Python
3.8 or newer, and nothing of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
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
    if not path:  # the operator is older
        return
    try:
        text = json.dumps(value, default=plain, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as problem:
        text = f"{name} returned no JSON: {problem}"
        advice = "Return numbers, texts, lists and dicts of them"
        print(f"ddpjob: {text}. {advice}", file=sys.stderr, flush=True)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def plain(value: Any) -> Any:
    """The numbers of an array or a tensor. Raises TypeError for another object."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} in it")


class StandIn(ModuleType):
    """Stands for ddpjob in an image without it, for scripts that call `launch` below.

    Its names can be imported, and stand in annotations, but not be called.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError(
                f"ddpjob.{name} cannot be used in a rank, because the image has no ddpjob: install "
                'it there, or use it below if __name__ == "__main__" alone'
            )

        return type(name, (Exception,), {"__new__": refuse})


# Here, and not in `run`, because the children that a data loader spawns import this file too.
if "ddpjob" not in sys.modules and importlib.util.find_spec("ddpjob") is None:
    sys.modules["ddpjob"] = StandIn("ddpjob")
