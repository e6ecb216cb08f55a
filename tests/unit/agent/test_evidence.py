"""The cause of a failure, found among the records of a pod's processes."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.failures.evidence import find_failures, gather
from ddpjob_agent.failures.failures import PRIMARY, SECONDARY, Failure
from ddpjob_agent.failures.verdict import Verdict, judge_failures, termination_message
from tests.unit.agent.samples import PEER_ENDS, SPAWN, config, error, worker


def verdict(
    tmp_path: Path, workers: list[dict[str, Any]], errors: list[dict[str, Any]], nodes: str = "2"
) -> Verdict:
    settings = config(tmp_path, DDPJOB_NNODES=nodes, DDPJOB_NPROC_PER_NODE="3")
    launch = {"workers": workers, "failures": [], "error": None}
    evidence = gather(errors, [], {}, 99.0)
    failures = find_failures(settings, launch, {"pid": 1, "exitcode": 1}, evidence)
    return judge_failures(failures, nodes == "1")


def test_the_own_failure_comes_before_an_earlier_echo(tmp_path: Path) -> None:
    workers = [worker(0, 1, 11.0), worker(1, -9, 12.0)]
    found = verdict(tmp_path, workers, [error(0, *PEER_ENDS[0], 10.0)])
    assert (found.failure.rank, found.failure.signal, found.agent_exit) == (1, "SIGKILL", 137)
    assert found.failure.grade == PRIMARY


def test_of_two_own_failures_the_earlier_one_counts(tmp_path: Path) -> None:
    workers = [worker(0, 1, 12.0), worker(1, 1, 12.0)]
    errors = [error(0, "ValueError", "late", 11.5), error(1, "KeyError", "'first'", 11.4)]
    found = verdict(tmp_path, workers, errors)
    assert (found.failure.rank, found.failure.message) == (1, "KeyError: 'first'")
    assert (found.reason, found.agent_exit, found.failure.time) == ("Exception", 1, 11.4)


def test_noise_from_a_process_of_mp_spawn_is_noise_too(tmp_path: Path) -> None:
    text = SPAWN.replace("mine.Trouble: boom", f"RuntimeError: {PEER_ENDS[0][1]}")
    found = verdict(tmp_path, [worker(0, 1, 9.0)], [error(0, "ProcessRaisedException", text, 8.0)])
    assert found.failure.exception == "RuntimeError" and found.failure.grade == SECONDARY


def test_a_worker_that_somebody_stopped_is_the_cause_where_nothing_else_happened(
    tmp_path: Path,
) -> None:
    found = verdict(tmp_path, [worker(0, -15, 10.0), worker(1, -15, 9.0)], [])
    assert (found.reason, found.failure.rank, found.agent_exit) == ("Signal", 1, 143)
    assert found.failure.grade == PRIMARY


def test_whom_torchrun_did_not_stop_comes_before_the_echo_of_its_end(tmp_path: Path) -> None:
    """torchrun looks every 0.1 s: by then a peer may have failed of it."""
    secondary = [error(0, *PEER_ENDS[0], 9.8)]
    killed = worker(1, -15, 10.0) | {"stopped_at": None}
    found = verdict(tmp_path, [worker(0, 1, 9.9), killed], secondary)
    assert (found.reason, found.failure.rank, found.failure.grade) == ("Signal", 1, PRIMARY)


@pytest.mark.parametrize("code", [-9, 1])
def test_whom_torchrun_stopped_comes_last_however_it_ended(tmp_path: Path, code: int) -> None:
    secondary = [error(0, *PEER_ENDS[0], 9.8)]
    stopped = worker(1, code, 10.0) | {"stopped_at": 9.9}
    found = verdict(tmp_path, [worker(0, 1, 9.9), stopped], secondary)
    assert (found.failure.rank, found.failure.grade) == (0, SECONDARY)


@pytest.mark.parametrize(("raised_at", "rank"), [(9.8, 1), (9.95, 0)])
def test_an_exception_is_its_own_of_one_that_was_stopped_later(
    tmp_path: Path, raised_at: float, rank: int
) -> None:
    """A flag-setting handler survives SIGTERM; the workers of its DataLoader do not."""
    workers = [worker(0, 1, 9.9), worker(1, 1, 10.0) | {"stopped_at": 9.9}]
    raised = [error(0, *PEER_ENDS[0], 9.7), error(1, "RuntimeError", "worker exited", raised_at)]
    assert verdict(tmp_path, workers, raised).failure.rank == rank


def test_an_abort_is_suspected_to_be_an_echo_only_where_there_are_other_pods(
    tmp_path: Path,
) -> None:
    workers = [worker(0, 1, 9.0), worker(1, -6, 10.0)]
    secondary = [error(0, *PEER_ENDS[0], 8.0)]
    several, single = (
        verdict(tmp_path, workers, secondary),
        verdict(tmp_path, workers, secondary, "1"),
    )
    assert several.failure.signal == single.failure.signal == "SIGABRT"
    told = [json.loads(termination_message(found, {})) for found in (several, single)]
    assert [(words["peer"], words["suspect"]) for words in told] == [(True, True), (False, False)]


def test_what_torchs_own_record_wrote_is_read(tmp_path: Path) -> None:
    extra = {"py_callstack": "Traceback …", "timestamp": "9"}
    failed = worker(1, 1, 10.0) | {"error": {"message": "ValueError: boom", "extraInfo": extra}}
    found = verdict(tmp_path, [failed], [])
    assert (found.failure.exception, found.failure.message) == ("ValueError", "ValueError: boom")
    assert found.failure.traceback == "Traceback …"


def test_a_helper_process_that_failed_on_the_way_is_not_the_cause(tmp_path: Path) -> None:
    helper = error(1, "ImportError", "optional thing", 3.0) | {"pid": 999}
    found = verdict(tmp_path, [worker(1, -9, 10.0)], [helper])
    assert (found.reason, found.failure.exception) == ("Signal", None)


def behind(
    tmp_path: Path, records: list[dict[str, Any]], *, launch: bool = False, **worker: Any
) -> Failure:
    """The failure of rank 1, a shell of pid 7 that ended at 100 with 1, by others' records."""
    ended = {"pid": 7, "rank": 1, "local_rank": 0, "exitcode": 1, "ended_at": 100.0, **worker}
    evidence = gather(records, [], {8: (1, 95.0)}, 100.0)
    workers = {"workers": [ended]} if launch else None
    found = find_failures(config(tmp_path), workers, ended, evidence)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("launch", [False, True], ids=["command", "torchrun"])
@pytest.mark.parametrize(
    ("record", "speaks"),
    [
        ({"pid": 9, "time": 99.0}, True),
        ({"pid": 9, "time": 96.0, "ended_at": 99.0}, True),
        ({"pid": 9, "time": 94.0}, False),  # rank 1 has made a step since
        ({"pid": 9, "time": 99.0, "rank": 2}, False),
        ({"pid": 8, "time": 30.0}, True),  # the rank itself; the shell took its time
    ],
)
def test_the_rank_itself_speaks_or_who_ended_last(
    tmp_path: Path, record: dict[str, Any], speaks: bool, launch: bool
) -> None:
    told = {"rank": 1, "type": "ValueError", "message": "boom", **record}
    earlier = {**told, "pid": 10, "type": "KeyError", "time": 97.0}
    records = [told, earlier] if record["time"] > 97.0 and speaks else [told]
    found = behind(tmp_path, records, launch=launch)
    assert found.exception == ("ValueError" if speaks else None)


def test_texts_of_any_length_are_judged_soon(tmp_path: Path) -> None:
    """A pattern that looks for two words takes the square of a text's length."""
    text = "gloo " * 25_000
    record = {"pid": 7, "type": "RuntimeError", "message": text}
    record["causes"] = [{"type": "RuntimeError", "message": text}] * 100
    began = time.process_time()
    assert behind(tmp_path, [record]).grade == PRIMARY
    assert time.process_time() - began < 5, "CPU seconds; a minute otherwise"


def test_garbage_in_the_records_is_survived(tmp_path: Path) -> None:
    workers = [{"pid": "x", "rank": "y", "exitcode": "z", "ended_at": math.nan, "error": [1]}]
    found = verdict(tmp_path, workers, [{"pid": [], "rank": {}} | {"pid": 3, "failures": "x"}])
    assert (found.failure.rank, found.failure.time, found.agent_exit) == (None, 99.0, 1)
    spoilt = {"pid": [1], "rank": {}, "type": "KeyError", "message": 7, "workers": [{"pid": {}}]}
    found = verdict(tmp_path, [worker(1, 1, 12.0)], [spoilt, error(1, "ValueError", "boom", 12.0)])
    assert (found.failure.rank, found.failure.exception) == (1, "ValueError")


def test_a_launcher_that_takes_long_to_end_has_named_its_child() -> None:
    words = {"code": 2, "by": "python", "message": "no script '/app/train.py'"}
    exits = [{"pid": 2, "time": 100.0, "program": "/app/train.py", **words}]
    told = {"type": "CalledProcessError", "message": "Command returned 2", "traceback": ""}
    errors = [{"pid": 1, "time": 101.0, "program": "accelerate.commands.launch", **told}]
    launcher = {"pid": 1, "exitcode": 1, "ended_at": 130.0}
    (failure,) = gather(errors, exits, {}, 131.0).judge(1, launcher, crowd=False)
    assert failure.message == "exited with code 2: no script '/app/train.py'"
