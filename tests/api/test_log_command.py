"""`ddpjob logs` in pipes and in a terminal, over real HTTP."""

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiServer
from tests.logproxy import PodLog, Proxy, seconds
from tests.terminal import COMMAND, Running, Terminal, ddpjob, environment


@pytest.fixture
def env(api_server: ApiServer, proxy: Proxy, namespace: str, tmp_path: Path) -> Mapping[str, str]:
    path = tmp_path / "kubeconfig"
    token = api_server.token
    api_server.write_kubeconfig(path, token=token, namespace=namespace, url=proxy.url)
    return environment(path)


@pytest.fixture
def logs(cluster: Cluster, proxy: Proxy) -> list[PodLog]:
    """The logs of a job of two pods with two ranks each, which runs."""
    cluster.running("digits")
    job = cluster.status("digits", worldSize=4)
    made = []
    for node in (0, 1):
        log = proxy.logs[f"digits-0-{node}"] = PodLog()
        for step in (1, 2):
            for rank in (2 * node, 2 * node + 1):
                text = b"[rank %d] step %d loss 5.%d" % (rank, step, rank)
                log.write(text, time_ns=seconds(step + rank / 10))
        cluster.pod(job, node)
        made.append(log)
    return made


def test_lines_have_their_attempt_and_rank(logs: list[PodLog], env: Mapping[str, str]) -> None:
    ended = ddpjob("logs", env=env)
    assert ended.code == 0
    assert ended.err.startswith("digits: your newest job in namespace ")
    assert ended.out == "a0 r0 | step 1 loss 5.0\na0 r0 | step 2 loss 5.0\n"
    everything = ddpjob("logs", "digits", "--all", env=env)
    assert everything.out.splitlines() == [
        f"a0 r{rank} | step {step} loss 5.{rank}" for step in (1, 2) for rank in range(4)
    ]


def test_lines_are_selected(logs: list[PodLog], env: Mapping[str, str]) -> None:
    def got(*options: str) -> list[str]:
        ended = ddpjob("logs", "digits", *options, env=env)
        assert ended.code == 0, ended.err
        return [line.partition(" | ")[2] for line in ended.out.splitlines()]

    assert got("--rank", "1,3", "--tail", "1") == ["step 2 loss 5.1", "step 2 loss 5.3"]
    assert got("--node", "1", "--grep", r"loss 5\.2$") == ["step 1 loss 5.2", "step 2 loss 5.2"]
    assert got("--all", "--since", "5m") == got("--all", "--since", "5m", "--tail", "5") == []
    assert got("--attempt", "all", "--tail", "0") == []
    timed = ddpjob("logs", "digits", "-t", "--tail", "1", env=env).out
    assert timed == "2023-11-14T22:13:22.000000000Z a0 r0 | step 2 loss 5.0\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rank", "1-"), "must be numbers such as 0,8-11, got '1-'"),
        (("--attempt", "last"), "must be a number, current or all, got 'last'"),
        (("--grep", "("), "no regular expression: missing ), unterminated subpattern"),
    ],
)
def test_wrong_options_are_named(
    options: tuple[str, ...], words: str, env: Mapping[str, str]
) -> None:
    ended = ddpjob("logs", "digits", *options, env=env)
    assert ended.code == 2 and words in ended.err and options[0] in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rank", "4-7"), "digits has no rank 4-7; it has ranks 0 to 3"),
        (("--node", "2"), "digits has no node 2; it has node ranks 0 to 1"),
    ],
)
def test_ranks_that_there_are_not_are_named(
    options: tuple[str, ...], words: str, logs: list[PodLog], env: Mapping[str, str]
) -> None:
    ended = ddpjob("logs", "digits", *options, env=env)
    assert (ended.code, ended.out, ended.err) == (3, "", f"error: {words}\n")


def test_json_has_one_object_for_each_line(logs: list[PodLog], env: Mapping[str, str]) -> None:
    logs[0].write(b"ddpjob-agent: \x1b[2J\xff", time_ns=seconds(3))
    lines = ddpjob("logs", "digits", "-o", "json", env=env).out.splitlines()
    assert json.loads(lines[0]) == {
        **{"time": "2023-11-14T22:13:21.000000000Z", "attempt": 0, "round": 0, "rank": 0},
        **{"nodeRank": 0, "node": "gpu-1", "pod": "digits-0-0", "container": "trainer"},
        "line": "step 1 loss 5.0",
    }
    last = json.loads(lines[-1])
    assert last["rank"] is None and last["line"] == "ddpjob-agent: \x1b[2J\ufffd"
    assert all(line.isascii() for line in lines)


def test_hostile_lines_cannot_touch_the_terminal(
    logs: list[PodLog], env: Mapping[str, str]
) -> None:
    logs[0].write(
        b"[rank 0] \x1b]0;owned\x07\x1b[2J\x9b31m\x00\xe2\x80\xae",
        b"[rank 0] \x1b[31mred\x1b[0m\tand plain",
        b"[rank 0] 10%|#  |\r20%|## |\r30%|###|",
        b"[rank 0] " + b"x" * 300_000,
        time_ns=seconds(3),
    )
    with Terminal("logs", "digits", "--tail", "4", env={**env, "NO_COLOR": "1"}) as terminal:
        assert terminal.end().code == 0
    assert not {"\x1b", "\x07", "\x00", "\x9b", "\u202e"} & set(terminal.raw)
    assert r"\x1b]0;owned\x07\x1b[2J" in terminal.text
    assert "| red\tand plain\n" in terminal.text and "| 30%|###|\n" in terminal.text
    assert "xxx … (the line goes on)" in terminal.text and len(terminal.text) < 20_000


def test_raw_lines_are_as_they_were_printed(logs: list[PodLog], env: Mapping[str, str]) -> None:
    text = b"\x1b[31mred\x1b[0m\r" + b"x" * 300_000
    logs[0].write(b"[rank 0] " + text, time_ns=seconds(3))
    ended = ddpjob("logs", "digits", "-o", "raw", "--tail", "1", env=env)
    assert ended.out.replace("\r", "\n").encode() == text.replace(b"\r", b"\n") + b"\n"
    logs[0].write(b"[rank 0] short", time_ns=seconds(4))
    ended = ddpjob("logs", "digits", "-o", "raw", "--grep", "red|short", env=env)
    assert ended.out.endswith("x\nshort\n") and ended.out.count("x") == 300_000


def test_ranks_have_colours_in_a_terminal(logs: list[PodLog], env: Mapping[str, str]) -> None:
    with Terminal("logs", "digits", "--all", env=env) as terminal:
        terminal.end()
    assert "\x1b[36ma0 r0 | \x1b[0mstep 1 loss 5.0\r\n" in terminal.raw
    assert "\x1b[33ma0 r1 | \x1b[0mstep" in terminal.raw


def test_follow_ends_with_the_jobs_result(
    cluster: Cluster, logs: list[PodLog], env: Mapping[str, str]
) -> None:
    with Running("logs", "-f", "digits", env=env) as running:
        running.until("step 2 loss 5.0")
        logs[0].write(b"[rank 0] the end", time_ns=seconds(9))
        running.until("the end")
        for node, log in enumerate(logs):
            log.end()
            cluster.pod_state(f"digits-0-{node}", "ended")
        cluster.status("digits", state="Failed", summary={"step": "2"})
        ended = running.end()
    assert ended.code == 1 and ended.out.endswith("a0 r0 | the end\n")
    assert "digits failed: " in ended.err and "  next: ddpjob describe digits\n" in ended.err


def test_an_attempt_that_is_over_ends_before_the_job_and_a_deleted_job_does_too(
    cluster: Cluster, proxy: Proxy, logs: list[PodLog], env: Mapping[str, str]
) -> None:
    for node, log in enumerate(logs):
        log.end()
        cluster.pod_state(f"digits-0-{node}", "ended")
    job = cluster.status("digits", state="Running", attempt=1)
    ended = ddpjob("logs", "-f", "digits", "--attempt", "0", env=env)
    assert ended.out.endswith("a0 r0 | step 2 loss 5.0\n")
    assert ended.code == 0 and "deleted" not in ended.err
    assert ended.err.endswith(
        "that attempt is over, and digits is Running in attempt 1\n  next: ddpjob logs -f digits\n"
    )
    log = proxy.logs["digits-1-0"] = PodLog()
    log.write(b"[rank 0] again", time_ns=seconds(9))
    cluster.pod(job, 0, attempt=1)
    with Running("logs", "-f", "digits", env=env) as running:
        running.until("a1 r0 | again")
        cluster.delete("digits")
        log.end()
        ended = running.end()
    assert ended.code == 3 and "digits was deleted" in ended.err


def test_ctrl_c_detaches_and_says_how_to_come_back(
    logs: list[PodLog], namespace: str, env: Mapping[str, str]
) -> None:
    with Terminal("logs", "-f", "digits", "-n", namespace, env=env) as terminal:
        terminal.until("step 2 loss 5.0")
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert f"detached: the job runs on.\n  ddpjob logs -f digits -n {namespace} " in ended.out
    assert f"  ddpjob delete digits -n {namespace} " in ended.out and "Traceback" not in ended.out
    words = ["logs", "-f", "digits", "--all", "-t", "--grep", "step [2]"]
    with Terminal(*words, env=env) as terminal:
        terminal.until("step 2 loss 5.3")
        terminal.type("\x03")
        ended = terminal.end()
    assert "  ddpjob logs -f digits --all -t --grep 'step [2]'  come back" in ended.out


def test_a_failed_job_shows_who_failed_first(
    cluster: Cluster, proxy: Proxy, env: Mapping[str, str]
) -> None:
    job = cluster.failed("bert")
    log = proxy.logs["bert-2-2"] = PodLog()
    log.write(*(b"[rank 5] line %d" % number for number in range(80)), time_ns=seconds(1))
    log.end()
    cluster.pod(job, 2, attempt=2, state="ended")
    ended = ddpjob("logs", "bert", env=env)
    assert ended.code == 0
    assert (
        ended.err == "the last lines of rank 5, which failed first in attempt 2 (--all has all)\n"
    )
    assert len(ended.out.splitlines()) == 50 and ended.out.endswith("a2 r5 | line 79\n")
    found = ddpjob("logs", "bert", "--grep", "line [12]$", env=env)
    assert found.out == "a2 r5 | line 1\na2 r5 | line 2\n", "who searches wants all there is"
    followed = ddpjob("logs", "bert", "-f", env=env)
    assert followed.code == 1 and followed.out == ended.out


def test_pods_that_are_gone_keep_nobody_from_following_the_next_attempt(
    cluster: Cluster, proxy: Proxy, env: Mapping[str, str]
) -> None:
    """After the loss of a node all pods of its attempt are deleted."""
    job = cluster.running("digits")
    failure = {"attempt": 0, "pod": "digits-0-1", "reason": "NodeLost", "message": "lost"}
    cluster.status("digits", state="Restarting", attempt=1, failure=failure)
    log = proxy.logs["digits-1-0"] = PodLog()
    cluster.pod(job, 0, attempt=1)
    gone = ddpjob("logs", "digits", env=env)
    text = "attempt 0 of digits has no pods any more; there are pods of attempt 1\n"
    assert gone.code == 3 and f"error: {text}" in gone.err
    with Running("logs", "-f", "digits", env=env) as running:
        log.write(b"again", time_ns=seconds(1))
        running.until("again")
        log.end()
        cluster.pod_state("digits-1-0", "ended")
        cluster.status("digits", state="Succeeded")
        ended = running.end()
    assert (ended.code, ended.out) == (0, "a1 r0 | again\n") and text in ended.err


def test_no_line_has_a_reason(cluster: Cluster, proxy: Proxy, env: Mapping[str, str]) -> None:
    cluster.pending("sweep")
    ended = ddpjob("logs", "sweep", env=env)
    assert (ended.code, ended.out) == (0, "")
    assert "no pod of attempt 0: sweep is Starting; Unschedulable: 0/9 nodes" in ended.err
    gone = ddpjob("logs", "sweep", "--attempt", "3", env=env)
    assert gone.code == 3 and "attempt 3 of sweep has no pods any more; none is" in gone.err
    job = cluster.running("digits")
    proxy.logs["digits-0-0"] = PodLog()
    cluster.pod(job, 0)
    empty = ddpjob("logs", "digits", env=env)
    assert (empty.code, empty.err) == (0, "no line yet\n")


@pytest.fixture
def beside(cluster: Cluster, proxy: Proxy) -> Mapping[str, PodLog]:
    """The logs of a pod with an init container and a sidecar, which waits for these."""
    job = cluster.running("digits")
    logs = {"fetch": PodLog(), "metrics": PodLog(), "trainer": PodLog()}
    for name, log in logs.items():
        proxy.logs["digits-0-0" if name == "trainer" else f"digits-0-0/{name}"] = log
    logs["fetch"].write(b"[rank 0] no such bucket", time_ns=seconds(1))
    logs["metrics"].write(b"ready", time_ns=seconds(2))
    logs["trainer"].refusal = (400, "container trainer in pod digits-0-0 is waiting to start")
    init = [{"name": "fetch"}, {"name": "metrics", "restartPolicy": "Always"}]
    cluster.pod(job, 0, state="waiting", init=init)
    return logs


def test_a_container_is_read_by_its_name(
    beside: Mapping[str, PodLog], env: Mapping[str, str]
) -> None:
    for name, text in (("metrics", "ready"), ("fetch", "[rank 0] no such bucket")):
        found = ddpjob("logs", "digits", "-c", name, env=env)
        assert (found.code, found.err, found.out) == (0, "", f"a0 n0 {name} | {text}\n")
    found = ddpjob("logs", "digits", "--container", "metrics", "-o", "json", env=env)
    record = json.loads(found.out)
    assert (record["container"], record["rank"], record["line"]) == ("metrics", None, "ready")
    waits = ddpjob("logs", "digits", "-c", "trainer", env=env)
    assert waits.err == "no line yet: digits-0-0 has not started (ContainerCreating)\n"
    for more in ((), ("-f",)):
        unknown = ddpjob("logs", "digits", "-c", "fetsch", *more, env=env)
        text = "no container of digits is called 'fetsch'; digits-0-0 has fetch, metrics, trainer"
        assert (unknown.code, unknown.out, unknown.err) == (3, "", f"error: {text}\n")


def test_the_init_container_that_failed_is_shown(
    cluster: Cluster, beside: Mapping[str, PodLog], env: Mapping[str, str]
) -> None:
    cluster.init_failed("digits-0-0", "fetch", 3)
    beside["fetch"].end()
    found = ddpjob("logs", "digits", env=env)
    heading = "digits-0-0: init container fetch failed (exit code 3); this is its log\n"
    assert (found.code, found.err) == (0, heading)
    assert found.out == "a0 n0 fetch | [rank 0] no such bucket\n"
    own = ddpjob("logs", "digits", "-c", "trainer", env=env)
    assert (own.code, own.out, own.err) == (0, "", "no line\n")


def test_who_follows_sees_a_sidecar_fail_and_then_the_trainer(
    cluster: Cluster, beside: Mapping[str, PodLog], env: Mapping[str, str]
) -> None:
    cluster.init_failed("digits-0-0", "metrics", 1, phase="Pending")
    with Running("logs", "-f", "digits", env=env) as running:
        running.until("a0 n0 metrics | ready")
        beside["trainer"].refusal = None
        beside["trainer"].write(b"step 1", time_ns=seconds(3))
        cluster.pod_state("digits-0-0", "running")
        running.until("| step 1")
        beside["trainer"].end()
        beside["metrics"].end()
        cluster.pod_state("digits-0-0", "ended")
        cluster.status("digits", state="Succeeded")
        ended = running.end()
    assert ended.code == 0 and "init container metrics failed (exit code 1)" in ended.err


def test_a_reader_that_goes_away_ends_it(logs: list[PodLog], env: Mapping[str, str]) -> None:
    logs[0].write(*(b"[rank 0] line %d" % n for n in range(50_000)), time_ns=seconds(5))
    command = [*COMMAND, "logs", "digits", "-f"]
    with subprocess.Popen(
        command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"a0 r0 | step 1 loss 5.0\n"
        process.stdout.close()
        assert process.wait(timeout=200) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_more_pods_than_streams_are_told(logs: list[PodLog], env: Mapping[str, str]) -> None:
    ended = ddpjob("logs", "digits", "--all", "--max-streams", "1", env=env)
    assert {line.split()[1] for line in ended.out.splitlines()} == {"r0", "r1"}
    assert "only pods 0 of 2 are shown (--max-streams)" in ended.err
