"""`ddpjob validate`: what it reads, what it prints and how it ends."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from ddpjob.cli import app
from tests.builders import JOB_YAML
from tests.cluster.tiers import ROOT
from tests.terminal import ddpjob, environment
from tests.unit.agent.archives import HOSTILE, packed


def validate(*files: Path | str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, files)], input=stdin)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(JOB_YAML)
    return path


def test_a_good_file_is_ok(good: Path) -> None:
    ended = validate(good)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, f"{good}: ok\n", "")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda x: x.stem
)
def test_the_examples_are_ok(example: Path) -> None:
    assert validate(example).exit_code == 0


def test_one_broken_file_of_two_is_named_and_fails_the_command(good: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(JOB_YAML + "  nnodes: 0\n")
    ended = validate(broken, good)
    assert ended.exit_code == 2
    assert ended.stdout == f"{good}: ok\n"
    assert ended.stderr == f"{broken}: digits: spec.nnodes: must be at least 1, got 0\n"


def with_code(good: Path, sha256: str, *parts: bytes) -> Result:
    """Validate a job with this code against an archive of these parts."""
    code = f"  code: {{configMaps: [a], sha256: {sha256!r}}}\n"
    good.write_text(JOB_YAML + (code if sha256 else ""))
    files = []
    for number, part in enumerate(parts):
        files += ["--code", str(good.with_name(f"part-{number}"))]
        Path(files[-1]).write_bytes(part)
    return validate(good, *files)


def test_the_archive_of_a_job_is_checked_as_the_agent_would(good: Path) -> None:
    archive = packed()
    digest = hashlib.sha256(archive).hexdigest()
    assert with_code(good, digest, archive).stdout == f"{good}: ok\n"
    assert with_code(good, digest, archive[:9], archive[9:]).exit_code == 0
    ended = with_code(good, digest, archive[:-1])
    assert ended.exit_code == 2 and ended.stderr.startswith(f"{good}: digits: spec.code: ")
    assert ended.stderr.endswith(f"and spec.code.sha256 is {digest}\n")
    content, words = next(iter(HOSTILE.values()))
    archive = gzip.compress(content)
    ended = with_code(good, hashlib.sha256(archive).hexdigest(), archive)
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"{good}: digits: spec.code: the archive is refused: ")
    assert words in ended.stderr


JSON_JOB = {
    "apiVersion": "ddpjob.dev/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "digits"},
    "spec": {"image": "trainer:1", "args": ["train.py"]},
}


def test_the_items_of_a_list_are_judged_one_by_one(tmp_path: Path) -> None:
    other = JSON_JOB | {"metadata": {"name": "faces"}, "spec": {"image": "", "args": ["a"]}}
    listing = {"apiVersion": "v1", "kind": "List", "items": [JSON_JOB, other]}
    ended = validate("-", stdin=json.dumps(listing))
    assert ended.stderr == "-: faces: spec.image: must be ASCII without blanks, got ''\n"
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(listing | {"items": [JSON_JOB]}, indent="\t"), "utf-8-sig")
    assert validate(path).stdout == f"{path}: ok\n"


def test_every_broken_field_is_reported_not_only_the_first() -> None:
    text = JOB_YAML.replace("name: digits", "name: Digits" + "x" * 60)
    text += "  env:\n  - {name: A, value: a, valueFrom: {}}\n"
    text += "  failurePolicy: {maxRestarts: -1}\n"
    lines = validate("-", stdin=text).stderr.splitlines()
    assert [line.split(": ")[2] for line in lines] == [
        "metadata.name",
        "metadata.name",
        "spec.env[0].valueFrom",
        "spec.failurePolicy.maxRestarts",
    ]


def test_a_message_never_shows_what_an_object_holds() -> None:
    text = JOB_YAML + "  env:\n  - {name: TOKEN, value: hunter2, valueFrom: {}}\n"
    text += "  volumes: {password: hunter2}\n  command: {password: hunter2}\n"
    ended = validate("-", stdin=text)
    assert ended.exit_code == 2
    assert "{password}" in ended.stderr
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: \xff\n", "byte 3: must be text in UTF-8"),
        (b"? [a]\n: b\n", "line 1, column 3: not YAML: found unhashable key"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    ended = validate(path)
    assert ended.exit_code == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{path}: {problem}")


def test_what_the_output_has_no_character_for_is_escaped() -> None:
    ended = ddpjob("validate", "↓.yaml", env={**environment(), "PYTHONIOENCODING": "latin-1"})
    assert ended.code == 2 and ended.err.startswith(r"\u2193.yaml: ")


def test_the_allow_list_is_the_charts_unless_one_is_given(tmp_path: Path) -> None:
    job = tmp_path / "host.yaml"
    job.write_text(JOB_YAML + "  template:\n    spec:\n      hostNetwork: true\n")
    ended = validate(job)
    assert ended.exit_code == 2 and "(policy.hostNetwork)" in ended.stderr
    policy = tmp_path / "policy.json"
    policy.write_text('{"hostNetwork": true}')
    assert validate(job, "--policy", policy).exit_code == 0
    policy.write_text('{"hostNetwork": 7}')
    ended = validate(job, "--policy", policy)
    assert ended.exit_code == 2 and "hostNetwork: must be" in " ".join(ended.stderr.split())
    ended = validate(job, "--policy", tmp_path / "none")
    assert ended.exit_code == 2 and "none: No such file or directory" in ended.stderr


def test_files_are_named_with_f_too(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(JOB_YAML)
    assert validate("-f", good).stdout == f"{good}: ok\n"
    assert validate(good, "-f", other).stdout == f"{good}: ok\n{other}: ok\n"
    ended = validate()
    assert ended.exit_code == 2 and "name a file; - is standard input" in ended.stderr


def test_the_problems_as_json(good: Path, tmp_path: Path) -> None:
    ended = validate(good, "-o", "json")
    assert (ended.exit_code, json.loads(ended.stdout)) == (0, {"ok": True, "problems": []})
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        JOB_YAML + f"  nnodes: 0\n---\n{JOB_YAML.replace('  name', '  labels: {}  #')}"
    )
    ended = validate(good, broken, tmp_path / "gone\x1b[2J", "-o", "json")
    assert ended.exit_code == 2 and ended.stderr == ""
    found = json.loads(ended.stdout)
    unread = "cannot be read: No such file or directory"
    assert found["ok"] is False and [list(each.values()) for each in found["problems"]] == [
        [str(broken), "digits", "spec.nnodes", "must be at least 1, got 0"],
        [str(broken), None, "metadata.name", "is required"],
        [f"{tmp_path}/gone\\x1b[2J", None, "(file)", unread],
    ]


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """What `submit --dry-run` prints, as a file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)

    def run(*options: str) -> Path:
        words = ["submit", "train.py", "--image", "torch:2.9", "--dry-run", *options]
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        file = tmp_path / "dry.yaml"
        file.write_text(ended.stdout)
        return file

    return run


def test_what_a_dry_run_prints_is_valid(dry_run: Callable[..., Path]) -> None:
    for options in ((), ("--code", "none"), ("-o", "json"), ("--name", "a")):
        file = dry_run(*options)
        assert validate(file).stdout == f"{file}: ok\n", options
    text = dry_run("--", "--lr", "3e-4", "y", "0x1F").read_text()
    config_map, job = yaml.safe_load_all(text)
    assert job["spec"]["args"] == ["train.py", "--lr", "3e-4", "y", "0x1F"]
    assert "'3e-4'" in text, "a number for kubectl without its quotes"
    assert re.fullmatch("train-[b-z2-9]{5}", job["metadata"]["name"])
    assert "generateName" not in job["metadata"]
    assert "binaryData" in config_map and dry_run("-o", "name").read_text().startswith("configmap/")


def test_two_jobs_may_share_the_config_maps_of_a_file(dry_run: Callable[..., Path]) -> None:
    file = dry_run("--name", "one")
    config_map, one = list(yaml.safe_load_all(file.read_text()))
    two = {**one, "metadata": {"name": "two"}}
    three = {**one, "metadata": {"name": "three"}, "spec": {"image": "a", "args": ["b"]}}

    def judged(*bodies: Any) -> Result:
        return validate("-", stdin="\n".join(map(json.dumps, bodies)))

    assert judged(one, config_map, two, three).exit_code == 0
    ended = judged(three, config_map)
    name = config_map["metadata"]["name"]
    rule = f"ConfigMap '{name}' is not in spec.code.configMaps of a job here"
    assert ended.stderr == f"-: (file): {rule}\n"
