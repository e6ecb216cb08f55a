"""`launch` in kept pods: whose result comes back, by the operator's own decisions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddpjob import (
    Client,
    Conflict,
    InvalidJob,
    Job,
    JobFailed,
    JobTimeout,
    LogLine,
    NotFound,
    Run,
    launch,
)
from ddpjob.client import display
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.threads import Pipe
from tests.cells import Notebook
from tests.unit.playedoperator import PlayedOperator, broken, done, runs

ONCE = {"failurePolicy": {"maxRestarts": 0}}
TRAIN = Notebook()("def train(lr=1):\n    return lr\n")["train"]
GONE = "launch anew, without job"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib.py").touch()
    monkeypatch.chdir(tmp_path)


def call(job: Job, *args: Any, **options: Any) -> Run:
    return launch(TRAIN, *args, **{"job": job, "stream": False, **options})


def rests(**spec: Any) -> tuple[PlayedOperator, Run]:
    """A job whose ranks have ended well in pods that are kept, and the call that has."""
    played = PlayedOperator(**spec)
    run = Run(played, played.request("GET", played.path))
    run._before = 0  # as `launch` creates it, without a status
    played.take(done("first"))
    return played, run


def test_the_call_that_has_made_the_job_ends_once_it_is_idle() -> None:
    _, run = rests()
    assert run.result() == "first" and run.state == "Idle" and not run.is_finished
    played = PlayedOperator(broken(), **ONCE)
    with pytest.raises(JobFailed, match="failed: Exception; first cause: rank 1"):
        Job(played, played.job).wait()


def test_another_function_runs_in_the_pods_and_its_own_result_comes_back() -> None:
    played, first = rests()
    # The operator sees the edit, and what it changes a moment later.
    played.turns = [{"program": ""}, {}, runs(2), done("second", 2)]
    run = call(first, 5)
    assert run.result() == "second"
    job = played.job
    assert (job["spec"]["args"], job["spec"]["nnodes"]) == (["ddpjob_call.py"], 2)
    assert job["status"]["program"]["revision"] == 2 and job["status"]["attempt"] == 0
    with pytest.raises(Conflict, match="another call"):
        first.result()
    assert run.result() == "second"


def test_the_same_call_again_runs_again() -> None:
    played, run = rests()
    for number in (2, 4):
        played.turns = [{}, runs(number), done(number, number)]
        run = call(run, 5)
        assert run.result() == number


@pytest.mark.parametrize("stream", [True, False])
def test_one_that_fails_raises_and_the_next_one_may_end_well(stream: bool) -> None:
    played, run = rests(**ONCE)
    played.turns = [{}, runs(2), broken(2)]
    with pytest.raises(JobFailed, match="ValueError: boom") as failed:
        call(run)
    played.turns = [{}, runs(4), done("well", 4)]
    assert call(failed.value.job).result() == "well"


def test_what_still_runs_is_replaced_and_its_end_is_not_that_of_the_call() -> None:
    played = PlayedOperator(runs(0), **ONCE)
    played.turns = [broken(), runs(1), done("second", 1)]
    assert call(Job(played, played.job)).result() == "second"


def test_a_job_without_pods_is_waited_for() -> None:
    played = PlayedOperator()
    played.job["status"]["state"] = "Pending"
    with pytest.raises(JobTimeout, match="is Pending after 0 s, not ready"):
        call(Job(played, played.job), timeout=0)
    assert played.job["spec"]["args"] == ["train.py"]
    played.turns = [runs(0), {}, runs(1), done("ours", 1)]
    assert call(Job(played, played.job)).result() == "ours"


def test_another_edit_ends_the_wait() -> None:
    played, run = rests()
    other = {"code": {"configMaps": ["x"], "sha256": "e" * 64}}
    played.turns = [{"edit": other}, runs(2), done("theirs", 2)]
    with pytest.raises(Conflict, match="another call by now, or other code"):
        call(run)


@pytest.mark.parametrize("kind", [Job, Run])
def test_what_a_job_itself_sends_is_waited_for(kind: type[Job]) -> None:
    played, run = rests()
    job = run if kind is Run else Job(played, played.job)
    job.update(code=Path.cwd())
    played.turns = [{}, runs(2), done("updated", 2)]
    assert job.result() == "updated"


def test_an_edit_that_cannot_run_is_no_end() -> None:
    played, run = rests()
    error = InvalidJob("spec.code", "there is no ConfigMap x")
    played.take({"edit": {"args": ["other.py"]}, "program": "", "edit_error": error})
    job = Snapshot(played.job)
    assert job.state == "Idle" and not job.has_ended and "no ConfigMap x" in job.refusal


def finish(played: PlayedOperator) -> None:
    played.job["status"]["state"] = "Succeeded"


def test_pods_that_are_gone_are_said_to_be() -> None:
    played, run = rests()
    finish(played)
    with pytest.raises(Conflict, match=f"digits has succeeded, so it keeps no pods; {GONE}"):
        call(run)
    played, run = rests()
    played.job["spec"]["suspend"] = True
    with pytest.raises(Conflict, match=f"is suspended.*{GONE}"):
        call(run)
    played, run = rests()
    del played.stored[played.path]
    with pytest.raises(NotFound, match=GONE):
        call(run)
    played, run = rests()
    run = call(run, wait=False)
    finish(played)
    with pytest.raises(Conflict, match=f"had succeeded before this call began; {GONE}"):
        run.result()


@pytest.mark.parametrize(
    "option",
    [
        *({"nnodes": 2}, {"gpus": 0}, {"image": "other"}, {"name": "other"}, {"spec": {}}),
        *({"env_from_secret": ["s"]}, {"checkpoint": "c"}, {"client": Client("team")}),
        {"keep_seconds": 60},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_kept_pods_cannot_change_is_named(option: dict[str, Any]) -> None:
    played, run = rests()
    before = played.job
    with pytest.raises(InvalidJob, match=f"launch: {next(iter(option))} cannot be given with job"):
        call(run, **option)
    assert played.job is before


def test_a_command_of_its_own_and_this_machine_have_no_kept_pods() -> None:
    _, run = rests(command=["sh"])
    with pytest.raises(InvalidJob, match=f"a command of its own; {GONE}"):
        call(run)
    for options in ({"job": run}, {"keep_seconds": 60}):
        with pytest.raises(InvalidJob, match="on this machine keeps no pods"):
            launch(TRAIN, on="local", **options)


def test_the_pods_of_a_new_job_are_kept_for_so_long() -> None:
    played, client = PlayedOperator(), Client("team")
    client.connection = played
    run = launch(TRAIN, image="i", client=client, keep_seconds=60, wait=False)
    assert (run.body["spec"]["keepSeconds"], run.body["spec"]["nnodes"]) == (60, 1)
    assert run.body["spec"]["failurePolicy"] == {"maxRestarts": 0}, "an error shows at once"
    thrice = {"failurePolicy": {"maxRestarts": 3}}
    run = launch(TRAIN, image="i", client=client, keep_seconds=60, spec=thrice, wait=False)
    assert run.body["spec"]["failurePolicy"] == {"maxRestarts": 3}
    with pytest.raises(InvalidJob, match="keepSeconds"):
        launch(TRAIN, image="i", client=client, keep_seconds=-1)


def line(round: int | None, attempt: int = 0) -> LogLine:
    return LogLine("", attempt, round, 0, 0, "n", "p", b"up")


def test_lines_of_earlier_calls_are_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = rests()
    run = call(first, wait=False)
    lines = [line(None), line(1), line(2), line(3), line(0, attempt=1)]
    monkeypatch.setattr(Job, "logs", lambda *_, **__: iter(lines))
    assert list(run._lines()) == lines[2:]
    started = Run(run._connection, {**run.body, "status": {}})
    assert list(started._lines()) == lines


def test_looking_on_ends_with_the_call_though_its_pods_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (_, run), is_over = rests(), threading.Event()

    def changes(job: Job) -> Iterator[Job]:
        yield job.refresh()
        assert is_over.wait(30), "the call has ended, and its log goes on"

    @contextmanager
    def news(job: Job) -> Iterator[Pipe[Any]]:
        pipe = Pipe[Any]()
        pipe.read(lambda: changes(job))
        yield pipe

    monkeypatch.setattr(Job, "news", news)
    monkeypatch.setattr(display, "LAST_SECONDS", 3600)
    try:
        run.follow(timeout=5)
        played = PlayedOperator()
        with pytest.raises(JobTimeout):
            Job(played, played.job).follow(timeout=0)
    finally:
        is_over.set()
