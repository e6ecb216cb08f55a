"""`ddpjob submit` without a cluster: what it refuses, and what it prints."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from ddpjob.cli import app


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def submit(*words: str) -> Result:
    return CliRunner().invoke(app, ["submit", "train.py", *words])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--label", ("--label", "a=b")),
        ("--namespace", ("-n", "a")),
        ("--watch", ("--watch",)),
        ("--code-include", ("--code-include", "train.py")),
        ("--namespace, --context", ("--context", "c", "-n", "a")),
    ],
)
def test_an_option_without_an_effect_on_this_machine_is_named(
    option: str, value: tuple[str, ...]
) -> None:
    ended = submit("--local", "--dry-run", *value)
    assert ended.exit_code == 0 and yaml.safe_load(ended.stdout)["metadata"]["name"] == "train"
    assert ended.stderr == f"of no effect on this machine: {option}\n"


def test_a_dry_run_for_this_machine_prints_the_job_as_it_would_run() -> None:
    printed = submit("--local", "--dry-run", "--nnodes", "2").stdout
    job = yaml.safe_load(printed)
    assert (job["metadata"], job["spec"]["nnodes"]) == ({"name": "train"}, 2)
    ended = submit("--local", "--dry-run", "-o", "json", "--nnodes", "2")
    assert json.loads(ended.stdout)["items"] == [job]
    assert submit("--local", "--dry-run", "-o", "name").stdout == "ddpjob.ddpjob.dev/train\n"
    ended = submit("--local", "--dry-run", "--name", "UPPER")
    assert ended.exit_code == 2 and "error: metadata.name: must be" in ended.stderr


def test_a_script_that_is_not_sent_is_named() -> None:
    Path(".ddpjobignore").write_text("train.py\n")
    Path("other.py").touch()
    ended = submit("--image", "i", "--dry-run")
    assert ended.exit_code == 2 and "'train.py' is not sent" in ended.stderr
    assert "  next: --code-include train.py\n" in ended.stderr
