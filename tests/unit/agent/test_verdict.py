"""The verdict on a pod, and the summary that tells it."""

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_agent import round
from ddpjob_agent.failures.failures import PRIMARY, SECONDARY, SUSPECT, Failure
from ddpjob_agent.failures.verdict import (
    Verdict,
    judge_failures,
    judge_memory,
    signal_number,
    termination_message,
    write_termination,
)
from tests.unit.agent.samples import config


def test_the_worst_summary_fits_and_a_traceback_keeps_its_end() -> None:
    metrics = {"\x01" * 63 + str(i): -1.7976931348623157e308 for i in range(32)}
    traceback = "\x01" * 9000 + "the last line"
    failure = Failure("\x01" * 9000, 1.5, exception="\x01" * 9000, traceback=traceback)
    failure.place = '"\x01' * 9000
    page = {"step": 1, "metrics": metrics, "namespace": "n" * 63, "job": "j" * 253}
    content = termination_message(Verdict("Exception", 1, failure), page)
    assert len(content) <= 4096 and json.loads(content)["progress"]["step"] == 1
    failure = Failure("ValueError: boom", 1.5, traceback=traceback)
    summary = json.loads(termination_message(Verdict("Exception", 1, failure), {}))
    assert summary["traceback"].endswith("the last line")


LOST = "RuntimeError: [pair.cc:561] Connection closed by peer"


@pytest.mark.parametrize(
    ("workers", "reason", "told"),
    [
        ([(1, 0, 2.0, None, 8), (0, 1, 3.0, None, 8)], "PeerEnded", "after step 8 while rank 0, "),
        ([(1, 0, 2.0, 1.9, 8), (0, 1, 3.0, None, 8)], "Exception", LOST),  # torchrun stopped it
        ([(1, 1, 2.0, None, 8), (0, 1, 3.0, None, 8)], "Exception", LOST),
        ([([], 0, "x", None, {}), (0, 1, 3.0, None, 8)], "PeerEnded", "while rank 0, past step 8"),
    ],
)
def test_a_rank_that_left_the_others_is_named(
    workers: list[tuple[Any, ...]], reason: str, told: str
) -> None:
    names = ("rank", "exitcode", "ended_at", "stopped_at", "step")
    found = [dict(zip(names, worker, strict=True)) for worker in workers]
    for alone in (True, False):
        lost = Failure(LOST, 3.0, 0, exception="RuntimeError", grade=SECONDARY)
        verdict = judge_failures([lost], alone, found)
        assert (verdict.reason, told in verdict.failure.message) == (reason, True)
        named = SUSPECT if reason == "PeerEnded" else SECONDARY
        assert verdict.failure.grade == (PRIMARY if alone else named)
    own = Failure("ValueError: boom", 3.0, 0, exception="ValueError")
    assert judge_failures([own], workers=found).reason == "Exception"


LOADER_KILLED = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "


@pytest.mark.parametrize(
    ("kills", "failure", "reason"),
    [
        (1, {"signal": "SIGKILL"}, "OOMKilled"),
        (0, {"signal": "SIGKILL"}, "Signal"),
        (1, {"exception": "ValueError", "message": "ValueError: boom"}, "Exception"),
        (1, {"exception": "RuntimeError", "message": LOADER_KILLED}, "OOMKilled"),
    ],
)
def test_a_kill_for_want_of_memory_is_told_from_other_ends(
    kills: int, failure: dict[str, str], reason: str
) -> None:
    values: dict[str, Any] = {"message": "killed by SIGKILL", "time": 1.0, **failure}
    first = Failure(**values)
    given = judge_failures([first])
    found = judge_memory(given, kills)
    assert found.reason == reason
    assert ("out of memory" in first.message) == (reason == "OOMKilled")
    assert (found.agent_exit == 137) == (first.signal == "SIGKILL" or reason == "OOMKilled")


def test_torchrun_itself_may_be_what_the_kernel_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round, "oom_kills", lambda: 1)
    ours: Any = SimpleNamespace(
        mode="torchrun", config=config(tmp_path), launcher=SimpleNamespace(oom_kills=0)
    )
    found = round.Round.judge_end(ours, {}, -9, [], 1.0)
    assert (found.reason, found.agent_exit) == ("OOMKilled", 137)
    assert found.failure.message.startswith("torchrun itself was killed by SIGKILL: out of memory")


@pytest.mark.parametrize(
    ("name", "number"), [("SIGTERM", 15), ("SIG35", 35), ("SIGNONE", 0), ("", 0)]
)
def test_a_signal_has_a_number_also_without_a_name_of_its_own(name: str, number: int) -> None:
    assert signal_number(name) == number
    verdict = judge_failures([Failure(f"killed by {name}", 1.0, signal=name)])
    assert (verdict.reason, verdict.agent_exit) == ("Signal", 128 + number)


# ---- The file of the termination message


def test_the_message_is_written_in_place_of_a_longer_one(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    write_termination(str(file), b"the first one")
    before = file.stat().st_ino
    write_termination(str(file), b"another")
    assert file.read_bytes() == b"another" and file.stat().st_ino == before


@pytest.mark.timeout(60)
def test_a_fifo_in_its_place_holds_nobody_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "termination-log"
    os.mkfifo(fifo)
    write_termination(str(fifo), b"message")
    assert f"cannot write the termination message to {fifo}: " in capfd.readouterr().err
    assert stat.S_ISFIFO(fifo.stat().st_mode)
