"""`ddpjob dev`: a job whose ranks run again with each save."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ddpjob.cli import app
from ddpjob.cli.exits import Exit
from ddpjob.cli.logs import Shown
from ddpjob.cli.options import Place
from ddpjob.cli.submit import Onlooker
from ddpjob.cluster import DDPJOBS
from ddpjob.code.archive import pack
from ddpjob.code.saves import Saves
from ddpjob.errors import InvalidJob, JobRefused
from tests.builders import job_object
from tests.terminal import COMMAND, environment
from tests.unit.playedserver import Played, play
from tests.waiting import wait_for


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return play(monkeypatch)


def dev(*words: str) -> Result:
    return CliRunner().invoke(app, ["dev", *(words or ("train.py", "--image", "i")), "--name", "d"])


def spec(played: Played) -> dict[str, Any]:
    found: dict[str, Any] = played.stored[DDPJOBS.path("team", "d")]["spec"]
    return found


def logs(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Place], object]) -> None:
    """Have something happen while the log is shown."""

    def show(place: Place, name: str, shown: Shown) -> Exit:
        assert name == "d" and shown.query.follow
        meanwhile(place)
        return Exit.OK

    monkeypatch.setattr("ddpjob.cli.logs.print_logs", show)


def test_each_save_is_sent_until_ctrl_c(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(place: Place) -> None:
        for text in ("1", "2"):
            Path("train.py").write_text(text)
            wait_for(lambda: spec(played)["code"] == pack(Path()).spec())
        raise KeyboardInterrupt

    logs(monkeypatch, save)
    ended = dev()
    assert (ended.exit_code, ended.stderr.count("-- saved: sent --")) == (130, 2)
    assert "detached: the job runs on.\n  ddpjob logs -f d" in ended.stderr
    assert "delete d and its pods?" not in ended.stderr
    kept = spec(played)["keepSeconds"], spec(played)["failurePolicy"]["maxRestarts"]
    assert kept == (1800, 0)


def test_a_save_that_is_not_sent_is_told(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(place: Place) -> None:
        played.away = True
        Path("train.py").write_text("1")
        wait_for(lambda: "-- saved: not sent, and tried again with the next save" in told())
        played.away = False
        Path("train.py").write_text("1")
        wait_for(lambda: spec(played)["code"] == pack(Path()).spec())

    lines = list[str]()
    monkeypatch.setattr("ddpjob.cli.dev.note", lambda *words: lines.extend(words))

    def told() -> str:
        return "\n".join(lines)

    logs(monkeypatch, save)
    assert dev().exit_code == 0 and "away" in told()


def test_until_it_runs_its_states_are_shown(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    def show(self: Onlooker) -> None:
        told.append(self._job.name)
        raise JobRefused(self._job)  # the log goes on

    monkeypatch.setattr(Onlooker, "until_it_runs", show)
    logs(monkeypatch, lambda place: wait_for(lambda: told))
    assert (dev().exit_code, told) == (0, ["d"])


@pytest.mark.parametrize("answer", [True, False, None])
def test_on_a_terminal_ctrl_c_asks_once_nothing_is_sent_any_more(
    played: Played, monkeypatch: pytest.MonkeyPatch, answer: bool | None
) -> None:
    watched = list[threading.Event]()

    def watch(self: Saves, send: object, tell: object, is_over: threading.Event) -> None:
        watched.append(is_over)
        is_over.wait()

    def leave(place: Place) -> None:
        wait_for(lambda: watched)
        raise KeyboardInterrupt

    def ask(text: str, err: bool) -> bool:
        assert text == "delete d and its pods?" and watched[0].is_set()
        if answer is None:
            raise typer.Abort
        return answer

    monkeypatch.setattr(Saves, "send", watch)
    monkeypatch.setattr("typer.confirm", ask)
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    logs(monkeypatch, leave)
    ended = dev()
    assert ended.exit_code == 130 and ("detached" in ended.stderr) is not answer
    assert bool(played.names(DDPJOBS)) is not answer


@pytest.mark.parametrize("error", [InvalidJob("code", "cannot be watched"), RuntimeError("odd")])
def test_what_ends_the_watch_is_told(
    played: Played, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ends = threading.Event()

    def fail(*_: object) -> None:
        threading.current_thread().name = "watch"
        ends.set()
        raise error

    def wait(place: Place) -> None:
        ends.wait()
        wait_for(lambda: "watch" not in [each.name for each in threading.enumerate()])

    monkeypatch.setattr(Saves, "send", fail)
    logs(monkeypatch, wait)
    ended = dev()
    assert ended.exit_code == 0 and f"{error}\n" in ended.stderr
    assert "-- saves are not sent any more; the job runs on --\n" in ended.stderr


def test_the_log_is_that_of_the_namespace_in_the_job_file(
    played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = job_object()
    job["metadata"]["namespace"] = "other"
    (tmp_path / "job.json").write_text(json.dumps(job))
    places = list[Place]()

    def leave(place: Place) -> None:
        places.append(place)
        raise KeyboardInterrupt

    logs(monkeypatch, leave)
    ended = dev("-f", "job.json", "--code", ".", "--context", "c")
    assert [place.namespace for place in places] == ["other"]
    assert "ddpjob delete d -n other --context c " in ended.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-f", "job.json"), "--code: name the folder whose files are watched"),
        (("train.py", "--local", "--directory", "out"), "--directory: is watched"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    played: Played, words: tuple[str, ...], text: str
) -> None:
    Path("job.json").write_text(json.dumps(job_object()))
    ended = dev(*words)
    assert ended.exit_code == 2 and text in ended.stderr and not Path("out").exists()


SCRIPT = "import os\nprint('run', {}, flush=True)\nopen('left', 'w').write(os.urandom(9).hex())\n"


@pytest.mark.deep
def test_here_each_node_runs_in_a_copy_so_what_ranks_write_is_no_save(tmp_path: Path) -> None:
    job = job_object(nnodes=2, command=["python3"])
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "train.py").write_text(SCRIPT.format(1))
    words = [*COMMAND, "dev", "-f", "job.json", "--code", ".", "--local"]
    env = environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, env=env, cwd=tmp_path, stdout=-1, text=True) as process:
        assert process.stdout
        lines = list[str]()
        for number in (1, 2):
            while f"[node 0] run {number}\n" not in lines:
                lines.append(process.stdout.readline())
                assert lines[-1]
            (tmp_path / "train.py").write_text(SCRIPT.format(2))
        while not lines[-1].startswith("digits  Idle"):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        lines += process.stdout.readlines()
    assert process.returncode == 130
    assert len([line for line in lines if line.startswith("[node 0] run")]) == 2, lines
    assert not (tmp_path / "left").exists()
