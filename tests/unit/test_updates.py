"""Other code, arguments and variables for a job that runs: `ddpjob update`, and its ConfigMaps."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ddpjob import names
from ddpjob.cli import app
from ddpjob.cluster import CONFIGMAPS, DDPJOBS
from ddpjob.code import code_maps
from tests.builders import job_object
from tests.unit.playedserver import Played, play

ENV = [{"name": "LR", "value": "0.1"}, {"name": "my.seed", "value": "1"}]
PREVIOUS = names.PREVIOUS_CODE_ANNOTATION


def body(name: str = "digits", *, state: str = "Running", **spec: Any) -> dict[str, Any]:
    """A job as the operator has seen it."""
    found = job_object(name, args=["train.py", "--lr", "1"], env=ENV, **spec)
    known = {"namespace": "team", "uid": name, "generation": 1}
    program = {"revision": 1, "hash": "0" * 16, "round": 0}
    status = {"state": state, "observedGeneration": 1, "program": program}
    return {**found, "metadata": {**found["metadata"], **known}, "status": status}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return play(monkeypatch, body())


def job(played: Played) -> dict[str, Any]:
    """The job as it is stored."""
    return played.stored[DDPJOBS.path("team", "digits")]


def update(*words: str) -> Result:
    return CliRunner().invoke(app, ["update", "digits", *words])


def test_what_is_named_changes_and_all_else_stays(played: Played) -> None:
    ended = update("--env", "LR=0.2", "--env", "my.seed=a=b", "--env", "NEW=1", "--", "--lr", "2")
    assert (ended.exit_code, ended.stdout) == (0, "digits is updated\n")
    spec = job(played)["spec"]
    assert spec["args"] == ["train.py", "--lr", "2"] and "code" not in spec
    pairs = [(each["name"], each["value"]) for each in spec["env"]]
    assert pairs == [("LR", "0.2"), ("my.seed", "a=b"), ("NEW", "1")]
    assert update("--", "--lr", "2").stdout == "digits is as it was\n"
    assert job(played)["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "name what is to change"),
        (("--env", "LR"), 2, "--env: must be NAME=VALUE"),
        (("--code", "none"), 2, "there is no folder"),
    ],
)
def test_what_changes_nothing_is_refused(
    played: Played, words: tuple[str, ...], code: int, text: str
) -> None:
    ended = update(*words)
    assert ended.exit_code == code and text in ended.stderr
    assert job(played) == body()


def test_a_finished_job_is_refused(played: Played) -> None:
    job(played)["status"]["state"] = "Failed"
    ended = update("--", "--lr", "2")
    assert ended.exit_code == 5 and "next: ddpjob rerun digits" in ended.stderr


def test_pods_of_an_earlier_version_are_refused(played: Played) -> None:
    del job(played)["status"]["program"]
    before = deepcopy(job(played))
    ended = update("--", "--lr", "2")
    assert ended.exit_code == 5 and "made by an earlier version of ddpjob" in ended.stderr
    assert job(played) == before
    job(played)["status"]["state"] = "Suspended"
    assert update("--", "--lr", "2").exit_code == 0


def send(played: Played, text: str) -> str:
    """Send other code, which the operator then sees; the name of its ConfigMap."""
    Path("train.py").write_text(text)
    assert update("--code", ".").exit_code == 0
    (name,) = code_maps.code_names(job(played))
    return name


def seen(played: Played) -> None:
    job(played)["status"]["observedGeneration"] = job(played)["metadata"]["generation"]


def test_code_is_sent_and_of_earlier_one_the_last_stays(played: Played) -> None:
    sent = []
    for text in "abc":
        sent.append(send(played, text))
        seen(played)
    assert played.names(CONFIGMAPS) == {*sent[1:]}
    assert job(played)["metadata"]["annotations"][PREVIOUS] == sent[1]
    (owner,) = played.stored[CONFIGMAPS.path("team", sent[2])]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == (names.KIND, "digits")
    assert send(played, "b") == sent[1]
    assert played.names(CONFIGMAPS) == {*sent[1:]}
    assert job(played)["metadata"]["annotations"][PREVIOUS] == sent[2]


@pytest.mark.parametrize("is_seen", [True, False])
def test_while_pods_may_yet_start_with_it_all_code_stays(played: Played, is_seen: bool) -> None:
    job(played)["status"]["state"] = "Restarting" if is_seen else "Running"
    sent = []
    for text in "abcd":
        sent.append(send(played, text))
        if is_seen:
            seen(played)
    assert played.names(CONFIGMAPS) == {*sent}
    job(played)["status"]["state"] = "Idle"
    seen(played)
    last = send(played, "e")
    assert played.names(CONFIGMAPS) == {sent[-1], last}


def test_a_config_map_of_another_job_or_of_nobody_stays(played: Played) -> None:
    first = send(played, "a")
    ours, place = job(played), CONFIGMAPS.path("team", first)
    code_maps.provide(played, {**ours, "metadata": body("other")["metadata"]}, ())
    for _ in range(2):
        code_maps.leave(played, ours, first)
        (owner,) = played.stored[place]["metadata"]["ownerReferences"]
        assert owner["name"] == "other"
    played.stored[place]["metadata"].pop("ownerReferences")
    code_maps.leave(played, ours, first)
    code_maps.leave(played, ours, "one-that-is-gone")
    assert played.names(CONFIGMAPS) == {first}


def test_names_that_anybody_has_written_do_no_harm(played: Played) -> None:
    first = send(played, "a")
    seen(played)
    job(played)["metadata"]["annotations"] = {PREVIOUS: f"../pods/x,,{first}"}
    assert {first, send(played, "b")} == played.names(CONFIGMAPS)
