"""The SDK as a program of somebody else sees it: its types, its names, its imports."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ddpjob
from ddpjob.client.aio import AsyncClient, AsyncJob
from ddpjob.client.client import Client
from ddpjob.client.job import Job
from tests.cluster.tiers import ROOT
from tests.terminal import python

PROGRAM = """
import asyncio
from pathlib import Path
from typing import Any, assert_type

from ddpjob import AsyncClient, AsyncJob, AsyncJobList, Attempt, Client, CodeArchive, DDPJob, Event
from ddpjob import Failure, Job, JobFailed, JobList, LogLine, Progress, Run, Snapshot, Spec, Status
from ddpjob import launch


def train(lr: float) -> dict[str, float]:
    return {"loss": lr}


run = launch(train, 1e-3, nnodes=2, gpus=8, image="i", env={"A": "b"}, on="local", timeout=60)
assert_type(run, Run)
assert_type(run.result(timeout=1), Any)
assert_type(launch(train, 1e-3, image="i", keep_seconds=60), Run)
assert_type(launch(train, 1e-3, job=run), Run)
launch("train.py", "--lr", 3e-4, code=Path("src"), client=Client("team-a"))
launch(train, 1, on="mars")  # type: ignore[arg-type]
launch(train, nnodes="2")  # type: ignore[arg-type]

with Client("team-a", context="c") as client:
    job = client.job("digits")
    assert_type(job, Job)
    assert_type([each.name for each in client.jobs(state="Running", mine=True)], list[str])
    assert_type(job.step, int | None)
    for line in job.logs(rank=3, tail=50):
        assert_type(line.text, str)
    try:
        job.wait("step=20", timeout=1)
    except JobFailed as error:
        assert_type(error.rank, int | None)
    job.wait(20)  # type: ignore[arg-type]
    assert_type(client.jobs(), JobList)
    assert_type(list(job.logs()), list[LogLine])
    assert_type(job.events(), list[Event])
    assert_type((job.spec, job.status, job.progress), tuple[Spec, Status, Progress | None])
    assert_type((job.failure, job.attempts), tuple[Failure | None, list[Attempt]])
    model = DDPJob.parse(job.body)
    assert_type(client.submit(model, code=Path("src")), Job)
    client.submit(Path("job.yaml"))
    client.submit("job.yaml")  # type: ignore[arg-type]


def name(job: Snapshot, archive: CodeArchive | None = None) -> str:
    return job.name


name(job)


async def main() -> None:
    async with AsyncClient() as client:
        job = await client.newest()
        assert_type(job, AsyncJob)
        assert_type(await client.jobs(), AsyncJobList)
        assert_type(await client.submit(Path("job.yaml")), AsyncJob)
        assert_type(await job.wait(), AsyncJob)
        async for change in job.watch():
            assert_type(change.state, str)
        async for line in job.logs(follow=True):
            assert_type(line.rank, int | None)
        client.job("digits").name  # type: ignore[attr-defined]


asyncio.run(main())
"""


@pytest.mark.deep
def test_a_program_of_somebody_else_is_checked_by_strict_types(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"MYPYPATH": str(ROOT / "operator"), "PATH": "/usr/bin:/bin"}
    words = ("-m", "mypy", "--strict", "--config-file", "", "program.py")
    ended = python(*words, env=env, cwd=tmp_path)
    ours = [line for line in ended.out.splitlines() if line.startswith("program.py")]
    assert ours == [] and "program.py" not in ended.err, ended
    # What is wrong elsewhere, such as a library without types, is not for this test.
    assert re.search(r"\b1 source file\b", ended.out), ended
    assert (ROOT / "operator/ddpjob/py.typed").is_file()


MODELS = {"DDPJob", "Spec", "Status", "Progress", "Failure", "Attempt"}


@pytest.mark.parametrize(("models", "also"), [(set(), ("pydantic",)), (MODELS, ())])
def test_importing_the_names_imports_no_large_library(
    models: set[str], also: tuple[str, ...]
) -> None:
    large = (*also, "torch", "kubernetes", "aiohttp", "rich", "typer", "jinja2", "IPython")
    names = ", ".join(name for name in ddpjob.__all__ if name not in MODELS or name in models)
    code = (
        f"from ddpjob import {names}; import sys; print([m for m in {large} if m in sys.modules])"
    )
    ended = python("-c", code, env={"PYTHONPATH": str(ROOT / "operator")})
    assert ended.out == "[]\n", ended


def test_an_example_of_the_page_uses_no_name_that_it_does_not_make() -> None:
    page = (ROOT / "docs" / "sdk.md").read_text().partition("<!-- reference -->")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        ended = python("-m", "ruff", "check", "--isolated", "--select", "F821", "-", stdin=block)
        assert ended.code == 0, ended


# What displays and commands use; a notebook's cell that follows a job needs its thread.
SYNCHRONOUS = {"follow", "news", "ways_back", "apart", "close", "until"}
SYNCHRONOUS |= {"rerun_with", "wait_until_gone"}


def names(kind: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(kind) if name[0] != "_"}


def test_the_asynchronous_twin_has_the_same_names() -> None:
    for sync, other in ((Job, AsyncJob), (Client, AsyncClient)):
        missing = names(sync).keys() - names(other).keys()
        assert missing <= SYNCHRONOUS, missing
        assert names(other).keys() <= names(sync).keys()
        assert (
            inspect.signature(other).parameters.keys() == inspect.signature(sync).parameters.keys()
        )
