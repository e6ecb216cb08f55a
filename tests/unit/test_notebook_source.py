"""The source of a notebook's function, with all that it uses, as a module."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from ddpjob.code.notebook_source import module_source
from ddpjob.errors import InvalidJob
from tests.cells import Notebook
from tests.terminal import python


def source(*cells: str, name: str = "train") -> str:
    notebook = Notebook()
    for cell in cells:
        notebook(cell)
    return module_source(notebook[name])


def result(text: str, folder: Path, call: str = "train()") -> Any:
    """What the call returns, as JSON, in a process that has the module and nothing else."""
    (folder / "ddpjob_notebook.py").write_text(text)
    code = f"from ddpjob_notebook import *; import json; print(json.dumps({call}))"
    ended = python("-c", code, cwd=folder)
    assert ended.code == 0, f"{ended.err}\n{text}"
    return json.loads(ended.out)


def test_a_function_takes_along_all_that_it_uses(tmp_path: Path) -> None:
    text = source(
        "import math\nimport os.path as places\nfrom collections import Counter as Tally\n",
        "LAYERS = [1, 2.5, ('a', None), {'k': True}, b'x']\nLIMIT = -2e9\n",
        "class Base:\n    def size(self):\n        return scale(len(LAYERS))\n",
        "def scale(n):\n    return n * FACTOR\nFACTOR = 2\n",
        "class Net(Base):\n    unit = 'px'\n",
        "def again(function):\n    return function\n",
        "@again\ndef train(n=FACTOR, *, at=math.floor(2.5)):\n"
        "    found = [Net().size() for _ in range(n)]\n"
        "    more = {'sizes': found, 'at': at, 'most': LIMIT < 1e9, 'unit': Net.unit}\n"
        "    return {**more, 'base': places.basename('/a/b'), 'tally': Tally('aab')['a']}\n",
        "def unrelated():\n    return open('secret')\n",
    )
    assert result(text, tmp_path) == {
        **{"sizes": [10, 10], "at": 2, "most": True, "unit": "px"},
        **{"base": "b", "tally": 2},
    }
    assert "unrelated" not in text and "open" not in text


def test_functions_may_call_each_other_and_themselves(tmp_path: Path) -> None:
    text = source(
        "def even(n):\n    return n == 0 or odd(n - 1)\n",
        "def odd(n):\n    return n != 0 and even(n - 1)\n",
        "def train():\n    return [even(10), odd(7), train.__name__]\n",
    )
    assert result(text, tmp_path) == [True, True, "train"]


def test_a_constant_has_the_value_of_the_moment_in_which_it_is_sent(tmp_path: Path) -> None:
    notebook = Notebook()("RATES = [1]\ndef train():\n    return RATES\n")("RATES.append(2)\n")
    text = module_source(notebook["train"])
    notebook("RATES.append(3)\n")
    assert result(text, tmp_path) == [1, 2]


def test_the_last_definition_of_a_name_counts(tmp_path: Path) -> None:
    text = source(
        "def helper():\n    return 1\n",
        "def train():\n    return helper()\n",
        "def helper():\n    return Net().size()\n\n"
        "class Net:\n    def size(self):\n        return 1\n\n"
        "if True:\n    class Net:\n        def size(self):\n            return 2\n",
    )
    assert result(text, tmp_path) == 2


def test_a_dataclass_and_an_enum_without_methods_are_found(tmp_path: Path) -> None:
    text = source(
        "from dataclasses import dataclass\nfrom enum import Enum\n",
        "@dataclass\nclass Config:\n    lr: float = 0.5\n",
        "class Colour(Enum):\n    RED = 1\n",
        "def train():\n    return [Config().lr, Colour.RED.value]\n",
    )
    assert result(text, tmp_path) == [0.5, 1]


def test_texts_of_a_definition_stay_as_they_are(tmp_path: Path) -> None:
    quoted = "'''one\n        two\n   \n    three\n'''"
    body = f"    def train():\n        return {quoted} + scale(Net.text)\n"
    text = source(
        f"def scale(text):\n    return text + {quoted}\n",
        f"try:\n\tclass Net:\n\t\ttext = {quoted}\nfinally:\n\tpass\n",
        f"if True:\n{body}",
    )
    assert result(text, tmp_path) == 3 * "one\n        two\n   \n    three\n"


def test_constants_of_torch_are_imported_by_name() -> None:
    pytest.importorskip("torch")
    text = source("import torch\nDTYPE = torch.bfloat16\ndef train():\n    return str(DTYPE)\n")
    assert "from torch import bfloat16 as DTYPE" in text and "import torch\n" not in text


def test_annotations_stay_unread_where_the_notebook_has_them_so(tmp_path: Path) -> None:
    text = source(
        "from __future__ import annotations\nfrom typing import Optional\n"
        "def train(net: Optional[int] = None) -> str:\n    return train.__annotations__['net']\n"
    )
    assert result(text, tmp_path) == "Optional[int]"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            ["ds = object()\ndef train():\n    return ds\n"],
            'train uses the notebook variable "ds" (object), which cannot be sent; '
            "build it inside train",
        ),
        (["def train():\n    return missing\n"], "the name missing, which is not defined"),
        (
            ["def make():\n    at = 1\n    def step():\n        return at\n    return step\n"]
            + ["step = make()\ndef train():\n    return step()\n"],
            "step uses at, a variable of the function that made it",
        ),
        (
            ["def step():\n    return 1\nother = step\ndef train():\n    return other()\n"],
            "other is another name of step; use that one",
        ),
        (
            ["exec('def step():\\n    return 1')\ndef train():\n    return step()\n"],
            "the source of step is not known; move it into a module of the folder",
        ),
    ],
)
def test_what_cannot_be_sent_is_named_with_what_to_do(cells: list[str], words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        source(*cells)
    assert words in str(refused.value) and str(refused.value).startswith("launch: ")


def test_builtins_that_ipython_wraps_are_builtins(tmp_path: Path) -> None:
    notebook = Notebook()("def train():\n    return open('f').read()\n")

    @functools.wraps(open)
    def modified(*args: Any) -> Any:
        return open(*args)

    notebook.names["open"] = modified
    (tmp_path / "f").write_text("x")
    assert result(module_source(notebook["train"]), tmp_path) == "x"


def test_a_class_without_methods_is_the_one_that_was_run_last(tmp_path: Path) -> None:
    one, two = (f"class Config:\n    lr = {lr}\n" for lr in (1, 2))
    text = source(one, two, one, "def train():\n    return Config.lr\n")
    assert result(text, tmp_path) == 1
    notebook = Notebook()(one)("def train():\n    return Config.lr\n")
    del notebook.names["In"]
    with pytest.raises(InvalidJob, match="the source of Config is not known"):
        module_source(notebook["train"])
