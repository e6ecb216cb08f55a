"""The agent's decisions, without processes."""

import ast
import json
import math
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent import main as agent
from ddpjob_agent.hooks import ddpjob_counts as agent_counts
from tests import agentpod

SOURCES = sorted(agentpod.SOURCES.rglob("*.py"))
RESOLV = "nameserver 10.96.0.10\nsearch ml.svc.cluster.local svc.cluster.local example.com\n"


def config(folder: Path, **changes: str) -> agent.Config:
    values = agentpod.environment(folder, "127.0.0.1")
    return agent.Config.from_env(values | changes)


# ---- What foreign images ask of the sources


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_mounted_files_are_python_3_8(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_mounted_files_import_the_standard_library_alone(source: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "ours").split(".")[0])
    assert names <= {*sys.stdlib_module_names, "ddpjob_agent"}


# ---- Environment


def test_every_broken_variable_is_named_with_its_value(tmp_path: Path) -> None:
    broken = {"DDPJOB_NNODES": "two", "MASTER_PORT": "70000", "DDPJOB_JOB": ""}
    with pytest.raises(agent.ConfigError) as caught:
        config(tmp_path, **broken)
    assert "DDPJOB_NNODES must be an integer from 1" in str(caught.value)
    assert "got 'two'" in str(caught.value)
    assert "MASTER_PORT must be an integer from 1 to 65535, got '70000'" in str(caught.value)
    assert "DDPJOB_JOB is not set" in str(caught.value)


def test_a_node_rank_beyond_the_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(agent.ConfigError, match="DDPJOB_NODE_RANK .* from 0 to 1, got '2'"):
        config(tmp_path, DDPJOB_NNODES="2", DDPJOB_NODE_RANK="2")


@pytest.mark.parametrize(
    ("host", "absolute"),
    [
        ("digits-0-0.digits", "digits-0-0.digits.ml.svc.cluster.local."),
        ("digits-0-0.digits.ml.svc.cluster.local", "digits-0-0.digits.ml.svc.cluster.local."),
        ("already.absolute.", "already.absolute."),
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7"),
        ("localhost", "localhost"),
    ],
)
def test_the_master_is_asked_for_by_its_absolute_name(host: str, absolute: str) -> None:
    assert agent.absolute_name(host, "ml", RESOLV) == absolute


def test_the_namespaces_search_domain_wins_over_one_that_was_put_before_it() -> None:
    resolv = "search example.com ml.svc.cluster.local\n"
    assert agent.absolute_name("a.b", "ml", resolv) == "a.b.ml.svc.cluster.local."
    assert agent.absolute_name("a.b", "other", resolv) == "a.b.example.com."


def test_a_machine_without_search_domains_keeps_the_name() -> None:
    assert agent.absolute_name("a.b", "ml", "nameserver 10.0.0.1\n") == "a.b"


def test_the_launcher_gets_our_hooks_before_the_users_path(tmp_path: Path) -> None:
    made = agent.launcher_env(config(tmp_path), {"PYTHONPATH": "/theirs"}, "")
    assert made["PYTHONPATH"] == agent.HOOKS + ":/theirs"


@pytest.mark.parametrize(
    ("grace", "shutdown"), [("60", "50"), ("20", "10"), ("8", "4"), ("0", "1")]
)
def test_torchrun_stops_its_workers_before_the_pod_is_killed(
    tmp_path: Path, grace: str, shutdown: str
) -> None:
    made = agent.launcher_env(config(tmp_path, DDPJOB_GRACE_SECONDS=grace), {}, "")
    assert made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == shutdown


def test_both_rendezvous_limits_are_one_number(tmp_path: Path) -> None:
    made = agent.launcher_env(config(tmp_path, DDPJOB_RENDEZVOUS_SECONDS="30"), {}, "")
    assert made["PET_RDZV_CONF"] == "timeout=30"


# ---- Progress


def progress_with(tmp_path: Path, text: str | bytes, **changes: str) -> agent.Progress:
    progress = agent.Progress(config(tmp_path, **changes))
    path = Path(progress.config.progress_file)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    progress.poll(0.0)
    return progress


def test_a_full_report_is_served_as_it_was_written(tmp_path: Path) -> None:
    text = '{"step": 12, "total_steps": 100, "epoch": 1, "loss": 0.5, "metrics": {"lr": 1e-3}}'
    page = progress_with(tmp_path, text).page("running")
    updated_at = page.pop("updated_at")
    assert page == {
        "version": 1,
        "namespace": "default",
        "job": "digits",
        "attempt": 0,
        "node_rank": 0,
        "state": "running",
        "source": "file",
        "step": 12,
        "total_steps": 100,
        "epoch": 1.0,
        "loss": 0.5,
        "metrics": {"lr": 0.001},
    }
    assert updated_at == pytest.approx(Path(tmp_path / "run/progress.json").stat().st_mtime)


def test_the_lines_of_the_docs_write_a_correct_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(__file__).parents[2] / "docs/progress.md"
    lines = docs.read_text().split("```python\n")[1].split("```")[0]
    progress = progress_with(tmp_path, "")
    monkeypatch.setenv("DDPJOB_PROGRESS_FILE", progress.config.progress_file)
    exec(lines, {"rank": 0, "step": 3, "total": 9, "loss": 0.5})
    progress.poll(1.0)
    page = progress.page("running")
    assert (page["step"], page["total_steps"], page["loss"]) == (3, 9, 0.5)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_loss_that_exploded_is_a_legal_loss(tmp_path: Path, text: str) -> None:
    page = progress_with(tmp_path, f'{{"step": 1, "loss": {text}}}').page("running")
    assert not math.isfinite(page["loss"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"step": 1, "loss": "low"}', "loss must be a number, got 'low'"),
        ('{"step": 1, "loss": true}', "loss must be a number, got 'True'"),
        ('{"step": 1, "total_steps": 0}', "total_steps must be a whole number above 0, got '0'"),
        ('{"step": 1, "epoch": 1' + "0" * 400 + "}", "epoch must be a number"),
        ('{"step": 1, "metrics": [1]}', "metrics must be an object"),
        ('{"step": 1, "metrics": {"lr": "x"}}', "metrics must be an object of at most 32 numbers"),
        (json.dumps({"step": 1, "metrics": {"m" * 64: 1}}), "names of at most 63 characters"),
        (json.dumps({"step": 1, "metrics": {str(i): i for i in range(40)}}), "at most 32 numbers"),
    ],
)
def test_a_wrong_field_is_left_out_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    progress = progress_with(tmp_path, text)
    progress.poll(1.0)
    page = progress.page("running")
    assert page["step"] == 1
    assert {"loss", "total_steps", "epoch"}.isdisjoint(page)
    assert len(page["metrics"]) in (0, 32)
    assert capsys.readouterr().err.count(problem) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 1",
        "[1]",
        '{"loss": 1}',
        '{"step": -1}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": 9007199254740992}',
        "[" * 9000,
        b'{"step": 1, "x": "\xff"}',
        '{"step": 1, "x": "' + "a" * 16384 + '"}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_garbled_file_is_refused_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert progress_with(tmp_path, text).page("running")["source"] == "none"
    assert "progress file" in capsys.readouterr().err


def test_a_garbled_file_does_not_undo_the_report_before_it(tmp_path: Path) -> None:
    progress = progress_with(tmp_path, '{"step": 7}')
    Path(progress.config.progress_file).write_text("half a fi")
    progress.poll(1.0)
    assert progress.page("running")["step"] == 7


def test_a_fifo_in_the_files_place_does_not_block(tmp_path: Path) -> None:
    progress = agent.Progress(config(tmp_path))
    (tmp_path / "run").mkdir()
    os.mkfifo(progress.config.progress_file)
    progress.poll(0.0)
    assert progress.page("running")["source"] == "none"


def test_the_rest_is_estimated_from_the_rate_since_the_first_report(tmp_path: Path) -> None:
    progress = progress_with(tmp_path, '{"step": 40, "total_steps": 100}')
    assert "eta_seconds" not in progress.page("running")
    path = Path(progress.config.progress_file)
    path.write_text('{"step": 60,  "total_steps": 100}')
    progress.poll(10.0)  # 20 steps in 10 s, 40 to go
    assert progress.page("running")["eta_seconds"] == 20.0
    path.write_text('{"step": 100,   "total_steps": 100}')
    progress.poll(11.0)
    assert progress.page("running")["eta_seconds"] == 0.0


def count(folder: Path, pid: int, *, step: int, local_rank: int | None) -> Path:
    """A page as a process of this pid would have left it."""
    (folder / "run").mkdir(exist_ok=True)
    path = folder / "run" / f"steps-{pid}.page"
    rank = -1 if local_rank is None else local_rank
    page = [agent_counts.MAGIC, step, rank, rank, agent_counts.started_ticks()]
    path.write_bytes(struct.pack("=5q", *page).ljust(agent_counts.PAGE_BYTES, b"\0"))
    return path


def counted(tmp_path: Path) -> int | None:
    return agent.counted_step(agent.read_pages(str(tmp_path / "run")))


def test_counted_steps_are_those_of_the_lowest_local_rank(tmp_path: Path) -> None:
    count(tmp_path, 1, step=5, local_rank=1)
    count(tmp_path, 2, step=3, local_rank=0)
    count(tmp_path, 3, step=4, local_rank=0)  # a helper process of the same rank
    count(tmp_path, 4, step=9, local_rank=None)
    count(tmp_path, 5, step=-1, local_rank=0)
    assert counted(tmp_path) == 4


def test_pages_that_a_script_has_spoilt_cost_neither_the_others_nor_the_agent(
    tmp_path: Path,
) -> None:
    count(tmp_path, 2, step=3, local_rank=0)
    count(tmp_path, 3, step=2**60, local_rank=0)
    run = tmp_path / "run"
    (run / "steps-4.page").write_bytes(b"")
    (run / "steps-5.page").write_bytes(b"x" * 39)
    with (run / "steps-6.page").open("wb") as sparse:
        sparse.truncate(2**40)
    os.mkfifo(run / "steps-7.page")
    (run / "steps-8.page").mkdir()
    (run / "steps-9.page").symlink_to("/dev/zero")
    (run / "steps-10.page").symlink_to("steps-10.page")
    (run / f"steps-{'9' * 200}.page").touch()
    assert counted(tmp_path) == 3


def test_a_page_belongs_to_its_process_not_to_the_next_one_with_that_pid(tmp_path: Path) -> None:
    own = count(tmp_path, os.getpid(), step=3, local_rank=0)
    run = str(tmp_path / "run")
    assert agent.counting_pids(run) == [os.getpid()]
    own.rename(own.with_name("steps-1.page"))
    assert agent.counting_pids(run) == []


def test_the_scripts_own_file_comes_before_counted_steps(tmp_path: Path) -> None:
    count(tmp_path, 1, step=50, local_rank=0)
    progress = progress_with(tmp_path, "")
    assert progress.page("running")["source"] == "counted"
    assert progress.page("running")["step"] == 50
    Path(progress.config.progress_file).write_text('{"step": 1}')
    progress.poll(1.0)
    progress.poll(2.0)
    assert progress.page("running")["source"] == "file"
    assert progress.page("running")["step"] == 1


def test_progress_file_means_that_counted_steps_are_not_shown(tmp_path: Path) -> None:
    count(tmp_path, 1, step=50, local_rank=0)
    progress = progress_with(tmp_path, "", DDPJOB_PROGRESS="file")
    assert progress.page("running")["source"] == "none"


def test_metrics_are_prometheus_text_with_escaped_labels() -> None:
    page = {"attempt": 2, "node_rank": 1, "step": 12, "loss": math.nan, "epoch": -math.inf}
    assert agent.metrics_text(page, 'a"\\\nb').splitlines() == [
        "# TYPE ddpjob_step gauge",
        'ddpjob_step{job="a\\"\\\\\\nb",attempt="2",node_rank="1"} 12.0',
        "# TYPE ddpjob_epoch gauge",
        'ddpjob_epoch{job="a\\"\\\\\\nb",attempt="2",node_rank="1"} -Inf',
        "# TYPE ddpjob_loss gauge",
        'ddpjob_loss{job="a\\"\\\\\\nb",attempt="2",node_rank="1"} NaN',
    ]


# ---- Failures. The texts were written by real jobs on torch 2.15, gloo, unless marked.

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5"
NOISE = [
    ("RuntimeError", GLOO + "61] Connection closed by peer [127.0.0.1]:42154. This is typically"),
    ("RuntimeError", GLOO + "45] Read error [127.0.0.1]:49068: Connection reset by peer. This is"),
    (
        "RuntimeError",
        GLOO[:-14] + "unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation",
    ),
    ("RuntimeError", "Application timeout caused pair closure"),
    (
        "DistNetworkError",
        "Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?",
    ),
    ("DistNetworkError", "Broken pipe"),
    ("DistStoreError", "wait timeout after 2000ms, keys: /k"),
    ("DistStoreError", "Timed out after 4 seconds waiting for clients. 1/2 clients joined."),
    # From reports; no GPU was at hand.
    (
        "DistBackendError",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:254, remote process exited or "
        "there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly",
    ),
    (
        "DistBackendError",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    ),
]
OWN = [
    ("ValueError", "Connection closed by peer"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("BrokenPipeError", "[Errno 32] Broken pipe"),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x1)"),
    ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."),
    # The store only waits for such a rank, and says less.
    ("DistNetworkError", "The client socket has timed out after 4000ms while trying to connect to"),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("DistBackendError", "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"),
]


@pytest.mark.parametrize(("kind", "text"), NOISE)
def test_a_peers_noise_is_told(kind: str, text: str) -> None:
    assert agent.is_peer_noise(kind, text)


@pytest.mark.parametrize(("kind", "text"), OWN)
def test_an_own_failure_is_no_noise(kind: str, text: str) -> None:
    assert not agent.is_peer_noise(kind, text)


LOADER = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    return table[i]
KeyError: 'missing'
"""
SPAWN = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 9, in main
    raise mine.Trouble("boom")
mine.Trouble: boom
"""
STATE = "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: copying a param"


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("ValueError", "boom", ("ValueError", "ValueError: boom")),
        ("ValueError", "\n boom\nand more", ("ValueError", "ValueError: boom")),
        ("AssertionError", "", ("AssertionError", "AssertionError")),
        ("KeyError", LOADER, ("KeyError", "KeyError: 'missing'")),
        ("ProcessRaisedException", SPAWN, ("Trouble", "mine.Trouble: boom")),
        (
            "RuntimeError",
            STATE,
            (
                "RuntimeError",
                "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for "
                "weight: copying a param",
            ),
        ),
    ],
)
def test_an_exception_is_one_line(kind: str, text: str, line: tuple[str, str]) -> None:
    assert agent.one_line(kind, text) == line


def worker(rank: int, code: int, at: float) -> dict[str, Any]:
    return {"pid": 100 + rank, "rank": rank, "local_rank": rank, "exitcode": code, "ended_at": at}


def error(rank: int, kind: str, text: str, at: float) -> dict[str, Any]:
    return {"pid": 100 + rank, "rank": rank, "type": kind, "message": text, "time": at}


def verdict(
    tmp_path: Path, workers: list[dict[str, Any]], errors: list[dict[str, Any]], nodes: str = "2"
) -> agent.Verdict:
    settings = config(tmp_path, DDPJOB_NNODES=nodes, DDPJOB_NPROC_PER_NODE="3")
    launch = {"workers": workers, "failures": [], "error": None}
    failures = agent.find_failures(settings, launch, errors, {"pid": 1, "exitcode": 1}, 99.0)
    return agent.judge_failures(failures, nodes == "1")


def test_the_own_failure_comes_before_an_earlier_echo(tmp_path: Path) -> None:
    workers = [worker(0, 1, 11.0), worker(1, -9, 12.0)]
    found = verdict(tmp_path, workers, [error(0, *NOISE[0], 10.0)])
    assert (found.failure.rank, found.failure.signal, found.agent_exit) == (1, "SIGKILL", 137)
    assert found.failure.grade == agent.OWN


def test_a_record_that_a_script_has_spoilt_hides_no_other(tmp_path: Path) -> None:
    spoilt = {"pid": [1], "rank": {}, "type": "KeyError", "message": 7, "workers": [{"pid": {}}]}
    found = verdict(tmp_path, [worker(1, 1, 12.0)], [spoilt, error(1, "ValueError", "boom", 12.0)])
    assert (found.failure.rank, found.failure.exception) == (1, "ValueError")
    settings = config(tmp_path)
    last = {"pid": 9, "exitcode": 1}
    assert agent.find_failures(settings, None, [spoilt], last, 99.0)[0].exception == "KeyError"


def test_of_two_own_failures_the_earlier_one_counts(tmp_path: Path) -> None:
    workers = [worker(0, 1, 12.0), worker(1, 1, 12.0)]
    errors = [error(0, "ValueError", "late", 11.5), error(1, "KeyError", "'first'", 11.4)]
    found = verdict(tmp_path, workers, errors)
    assert (found.failure.rank, found.failure.message) == (1, "KeyError: 'first'")
    assert (found.reason, found.agent_exit, found.failure.time) == ("Exception", 1, 11.4)


def test_noise_from_a_process_of_mp_spawn_is_noise_too(tmp_path: Path) -> None:
    text = SPAWN.replace("mine.Trouble: boom", f"RuntimeError: {NOISE[0][1]}")
    found = verdict(tmp_path, [worker(0, 1, 9.0)], [error(0, "ProcessRaisedException", text, 8.0)])
    assert found.failure.exception == "RuntimeError" and found.failure.grade == agent.ECHO


def test_siblings_that_torchrun_stopped_explain_nothing(tmp_path: Path) -> None:
    found = verdict(tmp_path, [worker(0, -15, 9.0), worker(1, 3, 10.0)], [])
    assert (found.reason, found.failure.rank, found.failure.exit_code) == ("ExitCode", 1, 3)


def test_a_worker_that_somebody_stopped_is_the_cause_where_nothing_else_happened(
    tmp_path: Path,
) -> None:
    found = verdict(tmp_path, [worker(0, -15, 10.0), worker(1, -15, 9.0)], [])
    assert (found.reason, found.failure.rank, found.agent_exit) == ("Signal", 1, 143)
    assert found.failure.grade == agent.OWN


def test_whom_torchrun_did_not_stop_comes_before_the_echo_of_its_end(tmp_path: Path) -> None:
    """torchrun looks every 0.1 s: by then a peer may have failed of it."""
    noise = [error(0, *NOISE[0], 9.8)]
    killed = worker(1, -15, 10.0) | {"stopped_at": None}
    found = verdict(tmp_path, [worker(0, 1, 9.9), killed], noise)
    assert (found.reason, found.failure.rank, found.failure.grade) == ("Signal", 1, agent.OWN)


@pytest.mark.parametrize("code", [-9, 1, 143])
def test_whom_torchrun_stopped_comes_last_however_it_ended(tmp_path: Path, code: int) -> None:
    noise = [error(0, *NOISE[0], 9.8)]
    stopped = worker(1, code, 10.0) | {"stopped_at": 9.9}
    found = verdict(tmp_path, [worker(0, 1, 9.9), stopped], noise)
    assert (found.failure.rank, found.failure.grade) == (0, agent.ECHO)


@pytest.mark.parametrize(("raised_at", "rank"), [(9.8, 1), (9.95, 0)])
def test_an_exception_is_its_own_of_one_that_was_stopped_later(
    tmp_path: Path, raised_at: float, rank: int
) -> None:
    """A flag-setting handler survives SIGTERM; the workers of its DataLoader do not."""
    workers = [worker(0, 1, 9.9), worker(1, 1, 10.0) | {"stopped_at": 9.9}]
    raised = [error(0, *NOISE[0], 9.7), error(1, "RuntimeError", "worker exited", raised_at)]
    assert verdict(tmp_path, workers, raised).failure.rank == rank


def test_an_abort_is_suspected_to_be_an_echo_only_where_there_are_other_pods(
    tmp_path: Path,
) -> None:
    workers = [worker(0, 1, 9.0), worker(1, -6, 10.0)]
    noise = [error(0, *NOISE[0], 8.0)]
    several, single = verdict(tmp_path, workers, noise), verdict(tmp_path, workers, noise, "1")
    assert several.failure.signal == single.failure.signal == "SIGABRT"
    told = [json.loads(agent.summarize(found, {})) for found in (several, single)]
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
) -> agent.Failure:
    """The failure of rank 1, a shell of pid 7 that ended at 100 with 1, by others' records."""
    ended = {"pid": 7, "rank": 1, "local_rank": 0, "exitcode": 1, "ended_at": 100.0, **worker}
    stepped = {8: (1, 95.0)}
    workers = {"workers": [ended]} if launch else None
    found = agent.find_failures(config(tmp_path), workers, records, ended, 100.0, stepped)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("launch", [False, True], ids=["command", "torchrun"])
@pytest.mark.parametrize(
    ("record", "speaks"),
    [
        ({"pid": 9, "time": 99.0}, True),
        ({"pid": 9, "time": 96.0, "ended_at": 99.0}, True),
        ({"pid": 9, "time": 94.0}, False),  # rank 1 has made a step since
        ({"pid": 9, "time": 30.0}, False),
        ({"pid": 9, "time": 99.0, "rank": 2}, False),
        ({"pid": 8, "time": 30.0}, True),  # the rank itself; the shell took its time
    ],
)
def test_the_rank_itself_speaks_or_who_ended_last(
    tmp_path: Path, record: dict[str, Any], speaks: bool, launch: bool
) -> None:
    told = {"rank": 1, "type": "ValueError", "message": "boom", **record}
    found = behind(tmp_path, [told], launch=launch)
    assert found.exception == ("ValueError" if speaks else None)


def test_of_a_ranks_helpers_the_last_one_speaks(tmp_path: Path) -> None:
    early, late = (
        {"pid": 10 + at, "rank": 1, "type": kind, "message": "boom", "time": 97.0 + at}
        for at, kind in enumerate(("KeyError", "ValueError"))
    )
    assert behind(tmp_path, [late, early]).exception == "ValueError"


def test_texts_of_any_length_are_judged_soon(tmp_path: Path) -> None:
    """A pattern that looks for two words takes the square of a text's length."""
    text = "gloo " * 25_000
    record = {"pid": 7, "type": "RuntimeError", "message": text}
    record["causes"] = [{"type": "RuntimeError", "message": text}] * 100
    began = time.process_time()
    assert behind(tmp_path, [record]).grade == agent.OWN
    assert time.process_time() - began < 5, "CPU seconds; a minute otherwise"


def test_garbage_in_the_records_is_survived(tmp_path: Path) -> None:
    workers = [{"pid": "x", "rank": "y", "exitcode": "z", "ended_at": math.nan, "error": [1]}]
    found = verdict(tmp_path, workers, [{"pid": [], "rank": {}} | {"pid": 3, "failures": "x"}])
    assert (found.failure.rank, found.failure.time, found.agent_exit) == (None, 99.0, 1)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python3", "-u", "no/such.py", "--lr", "1"], "no/such.py"),
        (["/usr/bin/python3.12", "-X", "dev", "-W", "error", "no/such.py"], "no/such.py"),
        (["python3", __file__], None),
        (["python", "-m", "no.such"], None),
        (["python", "-c", "x"], None),
        (["python3", "-u"], None),
        (["bash", "no/such.sh"], None),
        (["python3-config", "no"], None),
    ],
)
def test_a_script_that_python_would_not_find_is_known(
    command: list[str], script: str | None
) -> None:
    assert agent.missing_script(command) == script


# ---- Summary


# Drawing each of thousands of characters would take most of the time.
long_texts = st.builds(lambda part, times: part * times, st.text(max_size=60), st.integers(1, 100))


@given(
    message=long_texts,
    trace=long_texts,
    metrics=st.dictionaries(st.text(max_size=63), st.floats(), max_size=32),
)
def test_the_summary_always_fits_and_is_json(
    message: str, trace: str, metrics: dict[str, float]
) -> None:
    failure = agent.Failure(message, 1.5, rank=3, exception="E" * 300, traceback=trace)
    page = {"step": 1, "metrics": metrics}
    content = agent.summarize(agent.Verdict("Exception", 1, failure), page)
    summary = json.loads(content.decode("utf-8"))
    assert len(content) <= 4096
    assert (summary["rank"], summary["progress"]["step"]) == (3, 1)


def test_the_worst_summary_fits() -> None:
    metrics = {"\x01" * 63 + str(i): -1.7976931348623157e308 for i in range(32)}
    failure = agent.Failure("\x01" * 9000, 1.5, exception="\x01" * 9000, traceback="\x01" * 9000)
    failure.place = '"\x01' * 9000
    page = {"step": 1, "metrics": metrics, "namespace": "n" * 63, "job": "j" * 253}
    assert len(agent.summarize(agent.Verdict("Exception", 1, failure), page)) <= 4096


def test_a_long_traceback_keeps_its_end() -> None:
    failure = agent.Failure("ValueError: boom", 1.5, traceback="x" * 9000 + "the last line")
    summary = json.loads(agent.summarize(agent.Verdict("Exception", 1, failure), {}))
    assert summary["traceback"].endswith("the last line")
    assert summary["message"] == "ValueError: boom"


# ---- Memory


def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, **files: str) -> None:
    """Cgroup files at `where` below the mount, which this process's /proc/self/cgroup names."""
    folder = tmp_path / where.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    monkeypatch.setattr(agent, "CGROUPS", str(tmp_path))
    read = agent.read_text
    listed = "9:name=systemd:/\n5:memory:/kubepods/pod-1\n0::/kubepods/pod-1\n"
    monkeypatch.setattr(
        agent, "read_text", lambda path: listed if path == "/proc/self/cgroup" else read(path)
    )


V1 = {
    "memory_oom_control": "oom_kill_disable 0\noom_kill 2\n",
    "memory_limit_in_bytes": "536870912",
}
V2 = {"memory_events": "low 0\noom 1\noom_kill 2\noom_group_kill 0\n", "memory_max": "536870912\n"}


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("/memory/kubepods/pod-1", V1),
        ("/memory", V1),
        ("/kubepods/pod-1", V2),
        ("/", V2),
    ],
    ids=["v1", "v1-container", "v2", "v2-container"],
)
def test_the_kernels_count_of_kills_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, files: dict[str, str]
) -> None:
    cgroups(tmp_path, monkeypatch, where, **files)
    assert (agent.oom_kills(), agent.memory_limit()) == (2, 512 * 2**20)


def test_no_cgroup_and_no_limit_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups(tmp_path, monkeypatch, "/")
    assert (agent.oom_kills(), agent.memory_limit()) == (0, None)
    cgroups(tmp_path, monkeypatch, "/", memory_max="max\n")
    assert agent.memory_limit() is None


@pytest.mark.parametrize(
    ("kills", "failure", "reason"),
    [
        (1, {"signal": "SIGKILL"}, "OOMKilled"),
        (0, {"signal": "SIGKILL"}, "Signal"),
        (1, {"signal": "SIGSEGV", "message": "killed by SIGSEGV"}, "Signal"),
        (1, {"exception": "ValueError", "message": "ValueError: boom"}, "Exception"),
        (
            1,
            {
                "exception": "RuntimeError",
                "message": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ",
            },
            "OOMKilled",
        ),
        (
            1,
            {
                "exception": "RuntimeError",
                "message": "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
            },
            "OOMKilled",
        ),
    ],
)
def test_a_kill_for_want_of_memory_is_told_from_other_ends(
    kills: int, failure: dict[str, str], reason: str
) -> None:
    values: dict[str, Any] = {"message": "killed by SIGKILL", "time": 1.0, **failure}
    first = agent.Failure(**values)
    given = agent.judge_failures([first])
    found = agent.judge_memory(given, kills)
    assert found.reason == reason
    assert ("out of memory" in first.message) == (reason == "OOMKilled")
    assert (found.agent_exit == 137) == (first.signal == "SIGKILL" or reason == "OOMKilled")
