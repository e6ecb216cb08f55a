"""Following logs over real HTTP: cut streams, restarts, pods that come and go."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client
from ddpjob.client.job import Job
from ddpjob.errors import Forbidden, Unavailable
from ddpjob.names import pod_name
from ddpjob.times import timestamp
from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiServer
from tests.cluster.rights import account
from tests.kubeletlog import Chunk
from tests.logproxy import PodLog, Proxy, random_cuts, seconds
from tests.waiting import wait_for


@pytest.fixture
def client(proxied: Path) -> Client:
    return Client(kubeconfig=proxied)


@pytest.fixture
def notes(client: Client) -> list[str]:
    """What the client says to people."""
    found: list[str] = []
    client.connection.note = found.append
    return found


def pod_log(
    cluster: Cluster, proxy: Proxy, job: Any, rank: int = 0, *, attempt: int = 0, **options: str
) -> PodLog:
    """A running pod of the job, and its log."""
    log = proxy.logs.setdefault(pod_name(job["metadata"]["name"], attempt, rank), PodLog())
    cluster.pod(job, rank, attempt=attempt, **options)
    return log


@pytest.fixture
def log(cluster: Cluster, proxy: Proxy) -> PodLog:
    """The log of the pod of rank 0 of `digits`, which runs."""
    return pod_log(cluster, proxy, cluster.running("digits"))


def succeed(cluster: Cluster, *logs: PodLog, attempt: int = 0, rank: int = 0) -> None:
    """These pods of the job end well, from this rank on, and the job with them."""
    for number, log in enumerate(logs, rank):
        log.end()
        cluster.pod_state(f"digits-{attempt}-{number}", "ended")
    cluster.status("digits", state="Succeeded")


class Following:
    """The lines of a job while somebody follows them."""

    def __init__(self, job: Job, **options: object) -> None:
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self._logs = job.logs(follow=True, **options)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for line in self._logs:
                self.lines.append(line.text)
        except Exception as error:
            self.error = error

    def until(self, line: str) -> None:
        wait_for(lambda: self.error or line in self.lines[-50:], lambda: self.lines[-5:])
        assert not self.error, (self.lines[-5:], self.error)

    def end(self) -> list[str]:
        self._thread.join(timeout=200)
        assert not self._thread.is_alive() and not self.error, (self.lines[-5:], self.error)
        return self.lines


def test_the_log_of_rank_0_is_read_once(cluster: Cluster, proxy: Proxy, client: Client) -> None:
    job = cluster.running("digits")
    pod_log(cluster, proxy, job, 0).write(b"one", b"two")
    pod_log(cluster, proxy, job, 1).write(b"of rank 1")
    lines = list(client.job("digits").logs())
    assert [line.text for line in lines] == ["one", "two"]
    assert {(line.attempt, line.rank, line.node, line.pod) for line in lines} == {
        (0, 0, "gpu-1", "digits-0-0")
    }
    assert [line.text for line in client.job("digits").logs(rank="0-1")] == [
        *("one", "two", "of rank 1")
    ]
    assert [line.text for line in client.job("digits").logs(rank=0, tail=1)] == ["two"]


@pytest.mark.deep
def test_no_line_is_lost_or_repeated_at_10_000_a_second_over_cuts(
    cluster: Cluster, log: PodLog, client: Client
) -> None:
    log.cuts = random_cuts(7, 12, 400_000)
    following = Following(client.job("digits"))
    count = 30_000
    for first in range(0, count, 100):
        log.write(
            *(b"line %d of many, with some text in it" % n for n in range(first, first + 100))
        )
        time.sleep(0.01)
    succeed(cluster, log)
    assert following.end() == [f"line {n} of many, with some text in it" for n in range(count)]
    assert len(log.requests) > 12 and "sinceTime" in log.requests[-1]


def test_it_follows_into_the_next_attempt_and_ends_with_the_job(
    cluster: Cluster, proxy: Proxy, client: Client, notes: list[str]
) -> None:
    job = cluster.running("digits")
    first = pod_log(cluster, proxy, job)
    first.write(b"a0 begins")
    following = Following(client.job("digits"))
    following.until("a0 begins")
    first.write(b"a0 ends")
    first.end()
    failure = {"attempt": 0, "rank": 1, "node": "gpu-2", "reason": "ExitCode", "message": "exit 3"}
    cluster.pod_state("digits-0-0", "ended")
    summary = {"nodes": "0/2"}
    cluster.status("digits", state="Restarting", attempt=1, failure=failure, summary=summary)
    second = pod_log(cluster, proxy, job, attempt=1, state="waiting")
    second.write(b"a1 begins")
    following.until("a0 ends")
    time.sleep(0.3)
    assert following.lines == ["a0 begins", "a0 ends"], "its container has not started"
    cluster.pod_state("digits-1-0", "running")
    following.until("a1 begins")
    second.write(b"last words")
    succeed(cluster, second, attempt=1)
    assert following.end() == ["a0 begins", "a0 ends", "a1 begins", "last words"]
    assert notes == [
        "-- attempt 0 ended: ExitCode r1 gpu-2: exit 3; waiting for attempt 1 (0/2 pods) --"
    ]


def test_a_pod_that_is_deleted_while_its_stream_is_cut_is_told(
    cluster: Cluster, proxy: Proxy, log: PodLog, client: Client, notes: list[str]
) -> None:
    log.write(b"one", b"two", b"three")
    log.cuts = [60, 0, 0, 0, 0, 0]
    following = Following(client.job("digits"))
    following.until("one")
    cluster.delete_pod("digits-0-0")
    del proxy.logs["digits-0-0"]
    cluster.status("digits", state="Failed")
    assert following.end() == ["one"]
    assert notes[-1] == "digits-0-0: lines are missing, which nobody has any more"


def read(job: Job, **options: Any) -> list[str]:
    """The lines that there are, which must come to an end."""
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.extend(line.text for line in job.logs(**options)), daemon=True
    )
    thread.start()
    thread.join(timeout=200)
    assert not thread.is_alive(), f"it hangs after {len(found)} lines"
    return found


def test_pods_without_a_container_keep_nobody_from_reading_the_others(
    cluster: Cluster, proxy: Proxy, client: Client, notes: list[str]
) -> None:
    job = cluster.running("digits")
    first, refused = (pod_log(cluster, proxy, job, rank) for rank in (0, 1))
    first.write(b"begins")
    said = 'container "trainer" in pod "digits-0-1" is not available'
    refused.refusal = (400, said)
    following = Following(client.job("digits"), rank="0-1")
    following.until("begins")
    first.end()
    for rank in (0, 1):
        cluster.pod_state(f"digits-0-{rank}", "ended")
    cluster.status("digits", state="Restarting", attempt=1)
    second = pod_log(cluster, proxy, job, attempt=1)
    second.write(b"again")
    following.until("again")
    succeed(cluster, second, attempt=1)
    assert following.end() == ["begins", "again"]
    assert any(note.startswith(f"digits-0-1: {said}") for note in notes)
    assert read(client.job("digits"), rank="0-1", attempt=0) == ["begins"]
    assert notes[-1] == f"digits-0-1: {said}"


def test_a_node_that_does_not_answer_costs_the_lines_of_its_pods_alone(
    cluster: Cluster, proxy: Proxy, client: Client
) -> None:
    job = cluster.running("digits")
    pod_log(cluster, proxy, job, 0).refusal = (500, "dial tcp 10.0.0.1:10250: i/o timeout")
    pod_log(cluster, proxy, job, 1).write(b"one", b"two")
    found: list[str] = []
    with pytest.raises(Unavailable, match="i/o timeout"):
        found.extend(line.text for line in client.job("digits").logs(rank="0-1"))
    assert found == ["one", "two"]


def test_the_last_line_needs_no_end(cluster: Cluster, proxy: Proxy, client: Client) -> None:
    job = cluster.running("digits")
    log = pod_log(cluster, proxy, job, state="ended")
    log.write(b"step 1")
    log.chunks.append(Chunk(time.time_ns(), b"Segmentation fault", ends=False))
    log.end()
    assert read(client.job("digits"), tail=5) == ["step 1", "Segmentation fault"]
    assert read(client.job("digits")) == ["step 1", "Segmentation fault"]


def test_the_last_lines_are_read_over_cuts(
    cluster: Cluster, proxy: Proxy, client: Client, notes: list[str]
) -> None:
    log = pod_log(cluster, proxy, cluster.running("digits"), state="ended")
    log.write(*(b"line %d" % number for number in range(10)))
    log.end()
    log.cuts = [0, 0, 90]
    assert read(client.job("digits"), tail=5) == [f"line {number}" for number in range(5, 10)]
    assert len(log.requests) == 4 and not any("missing" in note for note in notes)


def test_who_wants_no_old_line_gets_the_new_ones_alone(
    cluster: Cluster, log: PodLog, client: Client
) -> None:
    log.write(b"old", b"older")
    following = Following(client.job("digits"), tail=0)
    wait_for(lambda: len(log.requests) >= 2)
    log.write(b"new")
    following.until("new")
    succeed(cluster, log)
    assert following.end() == ["new"]
    assert read(client.job("digits"), tail=0) == []


def test_the_server_may_be_away_for_a_while(
    cluster: Cluster, proxy: Proxy, log: PodLog, client: Client
) -> None:
    log.write(b"before")
    following = Following(client.job("digits"))
    following.until("before")
    proxy.down = True
    log.cuts = [0]
    log.write(b"meanwhile")
    time.sleep(0.5)
    proxy.down = False
    log.write(b"after")
    following.until("after")
    succeed(cluster, log)
    assert following.end() == ["before", "meanwhile", "after"]


def test_a_missing_right_to_read_logs_is_named(
    api_server: ApiServer, cluster: Cluster, proxy: Proxy, namespace: str, tmp_path: Path
) -> None:
    look = ["get", "list", "watch"]
    rules = ("ddpjob.dev", "ddpjobs", look), ("", "pods", look)
    token = account(api_server, namespace, "reader", *rules)
    job = cluster.running("digits")
    cluster.pod(job, 0)
    path = api_server.write_kubeconfig(
        tmp_path / "k", token=token, namespace=namespace, url=proxy.url
    )
    with pytest.raises(Forbidden) as refused:
        list(Client(kubeconfig=path).job("digits").logs())
    assert (refused.value.verb, refused.value.resource) == ("get", "pods/log")


def test_ranks_of_a_job_that_has_not_started_are_those_of_its_spec(
    cluster: Cluster, proxy: Proxy, client: Client
) -> None:
    job = cluster.job("digits", nprocPerNode=2)
    following = Following(client.job("digits"), rank=3)
    cluster.status("digits", state="Starting", worldSize=4)
    log = pod_log(cluster, proxy, job, 1)
    log.write(b"[rank 3] mine", b"[rank 2] not mine")
    following.until("mine")
    succeed(cluster, log, rank=1)
    assert following.end() == ["mine"]


def test_the_last_lines_are_followed_by_all_new_ones(
    cluster: Cluster, log: PodLog, client: Client
) -> None:
    log.write(*(b"old %d" % number for number in range(20)))
    log.cuts = [70, 100, 0, 150]
    following = Following(client.job("digits"), tail=2)
    following.until("old 19")
    for number in range(20):
        log.write(b"new %d" % number)
        time.sleep(0.01)
    following.until("new 19")
    succeed(cluster, log)
    assert following.end() == ["old 18", "old 19", *(f"new {number}" for number in range(20))]


def test_a_restart_in_place_goes_on_in_the_same_stream(
    cluster: Cluster, log: PodLog, client: Client, notes: list[str]
) -> None:
    log.write(b"round 0")
    following = Following(client.job("digits"))
    following.until("round 0")
    failure = {"attempt": 0, "round": 0, "rank": 1, "reason": "Exception", "message": "bad"}
    cluster.status("digits", state="Restarting", round=1, failure=failure)
    log.write(b"ddpjob-agent: round 1 of attempt 0 begins", b"again")
    following.until("again")
    assert len(log.requests) == 1
    succeed(cluster, log)
    assert following.end() == ["round 0", "ddpjob-agent: round 1 of attempt 0 begins", "again"]
    assert notes == ["-- round 0 of attempt 0 ended: Exception r1: bad; round 1 follows --"]


def test_a_job_that_restarts_shows_who_failed_first_and_then_rank_0_since(
    cluster: Cluster, proxy: Proxy, client: Client
) -> None:
    job = cluster.running("digits")
    head, failed = (pod_log(cluster, proxy, job, rank) for rank in (0, 1))
    head.write(b"long ago", time_ns=seconds(0))
    failed.write(*(b"line %d of rank 1" % number for number in range(60)), time_ns=seconds(0))
    failure = {"attempt": 0, "round": 0, "rank": 1, "pod": "digits-0-1", "reason": "Exception"}
    began = timestamp(seconds(10) / 1e9)
    failure = {**failure, "message": "bad", "time": began}
    cluster.status("digits", state="Restarting", round=1, failure=failure)
    assert [line.text for line in client.job("digits").logs()] == LAST
    head.write(b"again", time_ns=seconds(20))
    following = Following(client.job("digits"))
    following.until("again")
    cluster.status("digits", state="Running")
    head.write(b"goes on", time_ns=seconds(30))
    following.until("goes on")
    succeed(cluster, head, failed)
    assert following.end() == [*LAST, "again", "goes on"]


LAST = [f"line {number} of rank 1" for number in range(10, 60)]


def test_a_stream_that_only_looks_ended_is_opened_again(
    cluster: Cluster, log: PodLog, client: Client
) -> None:
    log.cuts, log.cuts_look_like_ends = [40, 0, 200], True
    following = Following(client.job("digits"))
    for number in range(10):
        log.write(b"line %d" % number)
    following.until("line 9")
    succeed(cluster, log)
    assert following.end() == [f"line {number}" for number in range(10)]


def test_an_idle_stream_is_opened_anew_without_a_word(
    cluster: Cluster,
    log: PodLog,
    client: Client,
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ddpjob.cluster.podlog.IDLE_SECONDS", 0.3)
    log.write(b"one")
    following = Following(client.job("digits"))
    following.until("one")
    wait_for(lambda: len(log.requests) >= 3)
    log.write(b"two")
    following.until("two")
    succeed(cluster, log)
    assert following.end() == ["one", "two"] and notes == []


def reading() -> bool:
    return any(thread.name == "ddpjob" for thread in threading.enumerate())


def test_who_stops_reading_leaves_no_thread_and_hears_nothing(
    cluster: Cluster, proxy: Proxy, client: Client, notes: list[str]
) -> None:
    job = cluster.running("digits")
    for rank in (0, 1):
        pod_log(cluster, proxy, job, rank).write(b"hello")
    lines = client.job("digits").logs(rank="0-1", follow=True)
    next(lines)
    assert reading()
    lines.close()  # type: ignore[attr-defined]
    wait_for(lambda: not reading())
    assert notes == []


def test_a_log_that_was_rotated_away_is_told(
    cluster: Cluster, log: PodLog, client: Client, notes: list[str]
) -> None:
    log.cuts = [200]
    for second in range(30):
        log.write(b"line %d" % second, time_ns=seconds(second))
    following = Following(client.job("digits"))
    following.until("line 3")
    log.begin = 20
    succeed(cluster, log)
    lines = following.end()
    assert lines[:4] == [f"line {n}" for n in range(4)] and lines[-1] == "line 29"
    assert len(lines) == len(set(lines))
    assert notes[-1] == "digits-0-0: lines are missing, which nobody has any more"
