"""`ddpjob convert`: what it reads, what it prints and how it ends."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ddpjob import api
from ddpjob.cli import app
from ddpjob.documents import documents, to_yaml
from tests.cluster.tiers import ROOT
from tests.foreign import pytorch_job, runtime, template, train_job

CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}


def convert(*arguments: Path | str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], input=stdin)


def text(*bodies: Any) -> str:
    return "---\n".join(map(to_yaml, bodies))


def named(name: str, body: Any) -> Any:
    return {**body, "metadata": {"name": name}}


def read(output: str, folder: Path) -> list[Any]:
    file = folder / "out.yaml"
    file.write_text(output)
    return list(documents(str(file)))


def test_a_job_is_printed_and_its_notes_are_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text(pytorch_job(elasticPolicy={"maxReplicas": 1})))
    ended = convert(file)
    assert ended.exit_code == 0
    (job,) = read(ended.stdout, tmp_path)
    assert job["kind"] == "DDPJob" and api.validate(job) == []
    lines = ended.stderr.splitlines()
    assert all(line.startswith(f"{file}: PyTorchJob digits: spec.") for line in lines)
    assert f"{file}: PyTorchJob digits: spec.elasticPolicy.maxReplicas: not carried over: 1: " in (
        ended.stderr
    )


def test_several_documents_files_and_standard_input(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.json"]
    files[0].write_text(text(named("a", pytorch_job()), named("b", pytorch_job())))
    files[1].write_text(json.dumps(named("c", pytorch_job())))
    ended = convert(*files, "-", stdin=text(named("d", pytorch_job())))
    assert ended.exit_code == 0
    found = [job["metadata"]["name"] for job in read(ended.stdout, tmp_path)]
    assert found == ["a", "b", "c", "d"]
    assert convert("-f", files[0], "-f", files[1]).stdout == convert(*files).stdout != ""
    ended = convert()
    assert ended.exit_code == 2 and "name a file; - is standard input" in ended.stderr


def test_a_runtime_may_stand_in_another_file_and_after_its_job(tmp_path: Path) -> None:
    files = [tmp_path / "job.yaml", tmp_path / "runtime.yaml"]
    files[0].write_text(text(train_job("own")))
    files[1].write_text(text(runtime()))
    ended = convert(*files)
    assert ended.exit_code == 0, ended.stderr
    (job,) = read(ended.stdout, tmp_path)
    assert job["spec"]["nnodes"] == 2


def test_json_is_one_object_or_a_list() -> None:
    one = json.loads(convert("-", "-o", "json", stdin=text(pytorch_job())).stdout)
    assert one["kind"] == "DDPJob"
    several = text(named("a", pytorch_job()), named("b", pytorch_job()))
    found = json.loads(convert("-", "--output", "json", stdin=several).stdout)
    assert (found["kind"], len(found["items"])) == ("List", 2)
    assert convert("-", "-o", "xml", stdin=several).exit_code == 2


def test_other_objects_are_left_out_and_named(tmp_path: Path) -> None:
    ended = convert("-", stdin=text(CLAIM, pytorch_job()))
    assert ended.exit_code == 0 and len(read(ended.stdout, tmp_path)) == 1
    assert "-: PersistentVolumeClaim data: left out, because it is neither" in ended.stderr


REFUSED = [
    ("", "no PyTorchJob or TrainJob in the input"),
    (text(runtime()), "no PyTorchJob or TrainJob in the input"),
    ("a: 1", "-: (object): kind: must be PyTorchJob of kubeflow.org/v1 or TrainJob of trainer"),
    (text(pytorch_job(worker={"replicas": -1})), "replicas: must be at least 0, got -1"),
    ("a: [", "-: line 1, column 5: not YAML: "),
]


@pytest.mark.parametrize(("stdin", "said"), REFUSED, ids=lambda x: x[:40])
def test_what_is_no_such_object_ends_with_2_and_names_the_rule(stdin: str, said: str) -> None:
    ended = convert("-", stdin=stdin)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr and isinstance(ended.exception, SystemExit)


def test_one_job_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    bad = named("bad", pytorch_job(worker={"replicas": "x"}))
    ended = convert("-", stdin=text(bad, named("good", pytorch_job())))
    assert ended.exit_code == 2
    assert [job["metadata"]["name"] for job in read(ended.stdout, tmp_path)] == ["good"]
    assert "-: PyTorchJob bad: spec.pytorchReplicaSpecs.Worker.replicas: must be" in ended.stderr


def test_text_of_others_is_printed_as_text() -> None:
    hostile = "\x1b[2J\u202e\nfake.yaml: ok"
    bodies = [
        {**pytorch_job(), hostile: hostile},
        named(hostile, pytorch_job()),
        pytorch_job(worker={"template": template(args=[hostile], env=[{"name": hostile}])}),
        {"apiVersion": hostile, "kind": hostile, "metadata": hostile},
    ]
    for body in bodies:
        ended = convert("-", stdin=json.dumps(body))
        assert all(line.isprintable() for line in ended.output.splitlines()), ended.output
        assert not any(line.startswith("fake.yaml") for line in ended.output.splitlines())


def test_the_example_of_the_page_becomes_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "convert.md").read_text()
    before = re.search(r"```yaml\n(apiVersion: kubeflow.*?)```", text, re.DOTALL)
    after = re.search(r"```\n\$ ddpjob convert bert.yaml\n(.*?)```", text, re.DOTALL)
    assert before and after
    monkeypatch.chdir(tmp_path)
    Path("bert.yaml").write_text(before[1])
    ended = convert("bert.yaml")
    assert ended.stderr + ended.stdout == after[1]
    Path("ddpjob.yaml").write_text(ended.stdout)
    assert CliRunner().invoke(app, ["validate", "ddpjob.yaml"]).exit_code == 0
