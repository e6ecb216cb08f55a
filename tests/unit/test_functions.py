"""Which calls of which functions can be sent to a job, and how."""

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpjob.code.functions import SCRIPT, Call, describe
from ddpjob.errors import InvalidJob
from tests.cells import Notebook


def load(path: Path, name: str) -> ModuleType:
    """A module of this name from a file, as if it were imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(
    call: Call, code: Path, elsewhere: Path | None = None, *, bare: bool = False, **env: str
) -> str:
    """What the call leaves in its result file; the ranks' working folder is that of the code.

    `bare` is a Python without any package, as that of an image without ddpjob.
    """
    place = elsewhere or code
    for path, content in call.files().items():
        (place / path).write_bytes(content)
    env = {"PATH": os.environ["PATH"], "DDPJOB_RESULT_FILE": str(place / "result.json"), **env}
    command = [sys.executable, "-u", *["-S"] * bare, str(place / SCRIPT)]
    ended = subprocess.run(command, cwd=code, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    left = place / "result.json"
    return left.read_text() if left.exists() else ended.stderr


PACKAGE = (
    "from pkg.rates import RATE\n\ndef train(lr, *, steps=1):\n    return [lr * RATE, steps]\n"
)


def test_a_function_of_a_module_is_sent_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "pkg/rates.py", "RATE = 2\n")
    path = write(tmp_path / "pkg/train.py", PACKAGE)
    sys.modules["pkg.rates"] = load(tmp_path / "pkg/rates.py", "pkg.rates")
    try:
        train = load(path, "pkg.train").train
    finally:
        del sys.modules["pkg.rates"]
    call = describe(train, (0.5,), {"steps": 3}, tmp_path)
    assert (call.module, call.name, call.source) == ("pkg.train", "train", "")
    assert list(call.files()) == [SCRIPT]
    assert run(call, tmp_path) == "[1.0,3]"


def test_a_function_of_the_script_itself_is_imported_by_the_name_of_its_file(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "train.py", "class Run:\n    @staticmethod\n    def f():\n        ...\n"
    )
    function = load(path, "__main__").Run.f
    call = describe(function, (), {}, tmp_path)
    assert (call.module, call.name) == ("train", "Run.f")
    with pytest.raises(InvalidJob, match=rf"not train in .*code='{tmp_path}' sends the"):
        describe(function, (), {}, tmp_path / "pkg")


def test_a_file_that_is_imported_from_elsewhere_in_the_folder_names_the_right_one(
    tmp_path: Path,
) -> None:
    function = load(write(tmp_path / "src/a/b.py", "def f(): ...\n"), "a.b").f
    with pytest.raises(InvalidJob, match=rf"which is not a\.b in .*code='{tmp_path}/src' sends"):
        describe(function, (), {}, tmp_path)
    assert describe(function, (), {}, tmp_path / "src").module == "a.b"
    package = load(write(tmp_path / "c/__init__.py", "def f(): ...\n"), "c").f
    assert describe(package, (), {}, tmp_path).module == "c"


def test_a_function_of_an_installed_package_is_the_images_own(tmp_path: Path) -> None:
    call = describe(json.dumps, ({"a": 1},), {}, tmp_path)
    assert (call.module, call.name) == ("json", "dumps")
    assert json.loads(run(call, tmp_path)) == '{"a": 1}'


def test_a_function_of_a_notebook_is_sent_by_its_source(tmp_path: Path) -> None:
    train = Notebook()("def train(lr):\n    return {'lr': lr}\n")["train"]
    call = describe(functools.partial(train, lr=0.5), (), {}, tmp_path)
    (code := tmp_path / "code").mkdir()
    assert run(call, code, elsewhere=tmp_path) == '{"lr":0.5}'


def test_no_argument_ends_the_script(tmp_path: Path) -> None:
    echo = Notebook()("def echo(x):\n    return x\n")["echo"]
    text = "\"'''\\\n\u2028\x00é')\nimport os"
    assert json.loads(run(describe(echo, (text,), {}, tmp_path), tmp_path)) == text


def test_only_rank_0_leaves_the_result(tmp_path: Path) -> None:
    train = Notebook()("def train():\n    return 1\n")["train"]
    call = describe(train, (), {}, tmp_path)
    assert run(call, tmp_path, RANK="1") == ""
    assert run(call, tmp_path, RANK="0") == "1"


def test_numbers_of_arrays_are_results(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    train = Notebook()(
        "import numpy\ndef train():\n    return [numpy.float32(0.5), numpy.ones(2), (1, None)]\n"
    )["train"]
    assert run(describe(train, (), {}, tmp_path), tmp_path) == "[0.5,[1.0,1.0],[1,null]]"


def test_what_is_no_json_fails_no_training(tmp_path: Path) -> None:
    train = Notebook()("def train():\n    return object()\n")["train"]
    left = run(describe(train, (), {}, tmp_path), tmp_path)
    assert left == "train returned no JSON: a object in it"


def test_the_script_runs_in_any_image() -> None:
    text = resources.files("ddpjob.code").joinpath("call_script.py").read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
    }
    own = {"__future__", "importlib", "importlib.util", "json", "os", "sys", "types", "typing"}
    assert imported == own


TOP = """
import multiprocessing
import ddpjob
from ddpjob import Client, JobFailed, launch

def child(queue):
    queue.put(launch.__name__)

def train(client: "Client | None" = None, *, mode=""):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    said = [queue.get(), hasattr(ddpjob, "__file__")]
    process.join()
    try:
        launch(train)
    except JobFailed:
        pass
    except RuntimeError as error:
        said.append(str(error))
    return said

if __name__ == "__main__":
    launch(train)
"""


def test_a_script_may_import_ddpjob_where_the_image_has_none(tmp_path: Path) -> None:
    train = load(write(tmp_path / "job.py", TOP), "job").train
    call = describe(train, (), {}, tmp_path)
    name, has_file, error = json.loads(run(call, tmp_path, bare=True, PYTHONPATH=str(tmp_path)))
    assert (name, has_file) == ("launch", False)
    assert error.startswith("ddpjob.launch cannot be used in a rank, because the image has no ddp")


def test_an_image_with_ddpjob_has_its_own(tmp_path: Path) -> None:
    text = "import ddpjob\n\ndef train():\n    return ddpjob.__version__\n"
    train = load(write(tmp_path / "job.py", text), "job").train
    write(tmp_path / "ddpjob.py", "__version__ = 'own'\n")
    left = run(describe(train, (), {}, tmp_path), tmp_path, bare=True)
    assert left == '"own"'


def within() -> Callable[[], None]:
    def train() -> None: ...

    return train


def takes(a: Any, b: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "<lambda> has no name by which it can be called"),
        (within(), "within.<locals>.train has no name by which it can be called"),
        (int, "int is a type; send a function"),
    ],
)
def test_what_is_no_function_of_its_own_is_refused(function: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        describe(function, (), {}, Path.cwd())
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (({1},), {}, "argument 1 cannot be sent: Object of type set is not JSON serializable"),
        ((1,), {"b": [Path()]}, "b cannot be sent: Object of type PosixPath is not JSON"),
        ((), {}, "takes() cannot be called so: missing a required argument: 'a'"),
        ((1,), {"c": 1}, "unexpected keyword argument 'c'; fields of the job belong into spec={"),
    ],
)
def test_arguments_are_json_that_the_function_takes(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        describe(takes, args, kwargs, Path(__file__).parents[2])
    assert words in str(refused.value)
