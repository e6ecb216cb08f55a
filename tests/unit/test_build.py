"""The object of a job, from what a command line says and from a file."""

import re
from typing import Any

import pytest

from ddpjob.client.build import JobOptions, build_job, problems, stem
from ddpjob.client.jobfile import named
from ddpjob.errors import InvalidJob
from tests.builders import job_object


def built(base: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return build_job(JobOptions(**options), base)


def spec(base: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = built(base, **options)["spec"]
    return found


def test_a_script_alone_makes_a_job_without_a_name() -> None:
    job = built(args=["train.py", "--lr", "3e-4"], image="torch:2.9", nnodes=2, gpus=8)
    assert job == {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"generateName": "train-"},
        "spec": {
            "args": ["train.py", "--lr", "3e-4"],
            "image": "torch:2.9",
            "nnodes": 2,
            "resources": {"limits": {"nvidia.com/gpu": 8}},
        },
    }
    assert problems(job) == []


def test_a_name_is_made_as_the_api_server_makes_it() -> None:
    job = named(built(args=["train.py"], image="i"))
    assert re.fullmatch("train-[b-z2-9]{5}", job["metadata"].pop("name")) and not job["metadata"]
    longest = built(args=[f"{'x' * 80}.py"], image="i")
    assert problems(named(longest)) == []
    own = built(name="mine", args=["train.py"])
    assert named(own) == own


def test_everything_that_is_said_is_in_the_job() -> None:
    job = built(
        args=["-m", "team.vision.train"],
        name="mine",
        image="torch:2.9",
        cpu="4",
        memory="8Gi",
        nproc_per_node=2,
        checkpoint="ckpt:/ckpt",
        env={"LR": "0.1"},
        env_from_secret=["wandb", "wandb"],
        image_pull_secrets=["registry"],
        hang_timeout_seconds=600,
        max_restarts=0,
    )
    assert job["metadata"] == {"name": "mine"}
    assert job["spec"] == {
        "args": ["-m", "team.vision.train"],
        "image": "torch:2.9",
        "nprocPerNode": 2,
        "hangTimeoutSeconds": 600,
        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
        "env": [{"name": "LR", "value": "0.1"}],
        "envFrom": [{"secretRef": {"name": "wandb"}}],
        "checkpoint": {
            "volume": {"persistentVolumeClaim": {"claimName": "ckpt"}},
            "mountPath": "/ckpt",
        },
        "failurePolicy": {"maxRestarts": 0},
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert problems(job) == []


FILE: dict[str, Any] = job_object(
    "digits",
    nnodes=4,
    args=["train.py", "--lr", "0.1"],
    env=[{"name": "A", "value": "a"}, {"name": "B", "value": "b"}],
    envFrom=[{"secretRef": {"name": "wandb"}}],
    imagePullSecrets=[{"name": "registry"}],
    resources={
        "limits": {"amd.com/gpu": 4, "cpu": "2"},
        "requests": {"amd.com/gpu": 4, "cpu": "1", "memory": "1Gi"},
    },
    failurePolicy={"maxRestarts": 3, "restartStrategy": "Recreate"},
    checkpoint={"volume": {"emptyDir": {}}, "mountPath": "/ckpt", "mountOn": "Rank0"},
)


def test_nothing_said_leaves_the_file_as_it_is() -> None:
    before = repr(FILE)
    assert built(FILE) == FILE and repr(FILE) == before


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"script_args": ["--lr", "0.3"]}, "args", ["train.py", "--lr", "0.3"]),
        (
            {"env": {"B": "c", "C": ""}},
            "env",
            [
                {"name": "A", "value": "a"},
                {"name": "B", "value": "c"},
                {"name": "C", "value": ""},
            ],
        ),
        (
            {"env_from_secret": ["wandb", "hf"]},
            "envFrom",
            [{"secretRef": {"name": "wandb"}}, {"secretRef": {"name": "hf"}}],
        ),
        (
            {"image_pull_secrets": ["other", "registry"]},
            "imagePullSecrets",
            [{"name": "registry"}, {"name": "other"}],
        ),
        (
            {"gpus": 8, "memory": "2Gi"},
            "resources",
            {
                "limits": {"cpu": "2", "amd.com/gpu": 8, "memory": "2Gi"},
                "requests": {"cpu": "1"},
            },
        ),
        (
            {"gpus": 0, "cpu": "3"},
            "resources",
            {"limits": {"cpu": "3"}, "requests": {"memory": "1Gi"}},
        ),
        ({"max_restarts": 1}, "failurePolicy", {"maxRestarts": 1, "restartStrategy": "Recreate"}),
        (
            {"checkpoint": "ckpt"},
            "checkpoint",
            {
                "volume": {"persistentVolumeClaim": {"claimName": "ckpt"}},
                "mountPath": "/ckpt",
                "mountOn": "Rank0",
            },
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_said_overrides_the_file(options: Any, field: str, value: Any) -> None:
    found = built(FILE, **options)
    assert found["spec"] == {**FILE["spec"], field: value}
    assert problems(found) == []


def test_a_program_replaces_that_of_the_file() -> None:
    file = job_object(command=["sh", "-c"], args=["sleep 1"], launcher="none")
    assert spec(file, args=["train.py"]) == {"image": "trainer:1", "args": ["train.py"]}
    assert spec(file, script_args=["sleep 2"])["args"] == ["sleep 2"]
    module = job_object(args=["-m", "pkg.train", "--lr", "1"])
    assert spec(module, script_args=["-q"])["args"] == ["-m", "pkg.train", "-q"]


def test_names_given_and_made() -> None:
    assert built(FILE, name="other")["metadata"] == {"name": "other"}
    unnamed = {"metadata": {"generateName": "sweep-"}, "spec": {}}
    assert built(unnamed)["metadata"] == {"generateName": "sweep-"}
    assert built(unnamed, name="x")["metadata"] == {"name": "x"}
    assert built({"spec": FILE["spec"]})["metadata"] == {"generateName": "train-"}


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["src/Train_Big.py"], "train-big"),
        (["-m", "team.vision.train"], "train"),
        (["-m", "team.vision.__main__", "-q"], "vision"),
        ([], "job"),
        (["2d.py"], "job-2d"),
        (["x" * 80 + ".py"], "x" * 46),
    ],
)
def test_the_stem_of_a_name_is_the_programs(args: list[str], name: str) -> None:
    assert stem(args) == name
    job = built(args=args or ["x.py"], image="i")
    job["metadata"] = {"generateName": f"{name}-"}
    assert not [problem for problem in problems(job) if problem.path == "metadata.name"]


def test_a_spec_and_metadata_of_another_type_are_named() -> None:
    for part in ("spec", "metadata"):
        with pytest.raises(InvalidJob) as refused:
            built({**FILE, part: [3]})
        assert refused.value.path == part
    assert built({**FILE, "metadata": None})["metadata"] == {"generateName": "train-"}


def test_odd_entries_of_a_file_stay_for_the_check() -> None:
    odd = ["x", 3, {"name": []}]
    file = job_object(env=odd, imagePullSecrets=["y"], args=[1])
    job = built(file, env={"A": "b"}, image_pull_secrets=["s"])
    assert job["spec"]["env"] == [*odd, {"name": "A", "value": "b"}]
    found = {problem.path for problem in problems(job)}
    assert found >= {"spec.env[0]", "spec.env[2].name", "spec.args[0]"}
    del job["metadata"]["name"]
    assert build_job(JobOptions(), job)["metadata"] == {"generateName": "job-"}


def test_problems_are_those_of_the_api_server() -> None:
    (problem,) = problems(built(args=["train.py"], nnodes=2))
    assert str(problem) == "spec.image: is required"
    (problem,) = problems(built(args=["train.py"], image="x", name="UPPER"))
    assert problem.path == "metadata.name"
