"""What the options of submit and run ask for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpjob.cli.job_options import Asked, in_namespace, read_env_file
from ddpjob.client.creation import with_code
from ddpjob.code.archive import pack
from ddpjob.documents import to_yaml
from ddpjob.errors import InvalidJob
from tests.builders import job_object


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """What options ask for in a folder with a script and a package."""
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    for file in ("train.py", "src/deep.py", "src/pkg/__init__.py", "tool.py"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)

    def make(script_args: list[str] | None = None, **given: Any) -> Asked:
        return Asked(script_args=script_args, **given)

    return make


@pytest.mark.parametrize(
    ("given", "folder", "args"),
    [
        ({"file": "train.py"}, ".", ["train.py"]),
        ({"file": "./src/deep.py"}, ".", ["src/deep.py"]),
        ({"file": "src/deep.py", "code": "src"}, "src", ["deep.py"]),
        ({"module": "tool"}, ".", ["-m", "tool"]),
        ({"module": "pkg", "code": "src"}, "src", ["-m", "pkg"]),
        ({"module": "ddptrain.native"}, None, ["-m", "ddptrain.native"]),
        ({"module": "tool", "code": "none"}, None, ["-m", "tool"]),
    ],
)
def test_the_folder_and_the_script_in_it(
    asked: Callable[..., Asked], given: dict[str, Any], folder: str | None, args: list[str]
) -> None:
    found = asked(["-q"], **given)
    assert found.folder == (None if folder is None else Path(folder))
    assert found.job()["spec"]["args"] == [*args, "-q"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"file": "gone.py"}, "there is no file 'gone.py'"),
        ({"file": "train.py", "code": "src"}, "'train.py' is not in the folder 'src'"),
        ({"file": "train.py", "code": "lib"}, "there is no folder 'lib'"),
        ({"file": "train.py", "env": ["A"]}, "--env: must be NAME=VALUE"),
        ({"file": "train.py", "label": ["a"]}, "--label: must be KEY=VALUE"),
        ({"file": "train.py", "env_file": ["gone"]}, "gone: No such file or directory"),
    ],
)
def test_what_cannot_be_is_named(
    asked: Callable[..., Asked], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        asked(**given).job()


def test_options_override_a_job_file(asked: Callable[..., Asked], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job_object("digits", nnodes=2, args=["x.py", "-a"])))
    job = asked(["-b"], filename=str(file), nnodes=4, nproc_per_node="2", name="new").job()
    assert job["metadata"] == {"name": "new"}
    spec = job["spec"]
    assert (spec["nnodes"], spec["nprocPerNode"], spec["args"]) == (4, 2, ["x.py", "-b"])
    assert asked(filename=str(file)).folder is None
    assert asked(filename=str(file), hang_timeout=90.5).job()["spec"]["hangTimeoutSeconds"] == 91
    auto = asked(filename=str(file), nproc_per_node="auto").job()
    assert auto["spec"]["nprocPerNode"] == "auto"
    file.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(InvalidJob, match="exactly one job, .*got 2"):
        asked(filename=str(file)).job()
    file.write_text("[1]")
    assert asked(filename=str(file)).job() == [1]  # the check says that this is no job


def test_the_code_of_a_job_file_goes_along_unless_there_is_other(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    archive = pack(tmp_path / "src")
    file = tmp_path / "job.yaml"
    bodies = [*archive.config_maps(), with_code(job_object(), archive)]
    file.write_text("---\n".join(map(to_yaml, bodies)))
    own = asked(filename=str(file), nnodes=3)
    assert own.job()["spec"] == {**bodies[-1]["spec"], "nnodes": 3}
    assert list(own.config_maps) == archive.config_maps()
    assert asked(filename=str(file), code="src").config_maps == ()
    assert asked(filename=str(file), code="none").config_maps == ()
    assert asked(filename=str(file), file="train.py").config_maps == ()
    assert asked(file="train.py").config_maps == ()


def test_variables_of_options_win_over_those_of_files(
    asked: Callable[..., Asked], tmp_path: Path
) -> None:
    file = tmp_path / "vars"
    file.write_text("# mine\n\nA=1\nexport B='two words'\n C = x=y \nD=\"\nE=\n")
    assert read_env_file(str(file)) == {"A": "1", "B": "two words", "C": "x=y", "D": '"', "E": ""}
    env = asked(file="train.py", env_file=[str(file)], env=["A=2", "F=a=b"]).job()["spec"]["env"]
    assert {each["name"]: each["value"] for each in env} | {"B": "", "C": ""} == {
        **{"A": "2", "B": "", "C": "", "D": '"', "E": "", "F": "a=b"},
    }


def test_a_wrong_file_of_variables_is_named_without_its_values(tmp_path: Path) -> None:
    file = tmp_path / "vars"
    file.write_text("A=1\nsecret-value\n")
    with pytest.raises(InvalidJob, match="line 2: must be NAME=VALUE") as refused:
        read_env_file(str(file))
    assert "secret-value" not in str(refused.value)


def test_a_file_and_an_option_must_agree_on_the_namespace() -> None:
    job = {"metadata": {"namespace": "a"}}
    for namespace in (None, "a"):
        in_namespace(job, namespace)
    in_namespace({"metadata": {}}, "b")
    with pytest.raises(InvalidJob, match="must be b, as -n says, got 'a'"):
        in_namespace(job, "b")
