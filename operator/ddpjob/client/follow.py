"""Follows the logs of a job's pods: of those that there are, and of those that will be.

A thread reads each log, two more watch the job and its pods. All they find goes through one lock to
whoever reads the lines.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from typing import TYPE_CHECKING

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.client.logs import LastLines, LineMaker, LogLine, Pod, Wanted, read_pod
from ddpjob.client.merge import QUIET, Merge, Timed
from ddpjob.client.pieces import Piece
from ddpjob.client.podlog import PodLog
from ddpjob.client.resume import Clock
from ddpjob.cluster import DDPJOBS, PODS
from ddpjob.errors import DDPJobError
from ddpjob.json_depth import Body
from ddpjob.ranks import format_ranks

if TYPE_CHECKING:
    from ddpjob.client.job import Job

# Pods of a finished job whose containers still run are followed for so long.
GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Query:
    """Which lines to read, and whether to go on."""

    wanted: Wanted = field(default_factory=Wanted)
    follow: bool = False
    tail: int | None = None
    """Only the last lines of each pod, of those that are shown."""
    since: float | None = None
    """Only lines after this Unix time."""
    shows: Callable[[LogLine], bool] | None = None
    """A further condition of a line."""
    max_streams: int = 64
    """The most pods of an attempt that are read at once."""


class Logs:
    """The lines of a job, in batches. After the last one, `job` is how the job ended."""

    def __init__(self, connection: Connection, job: "Job", query: Query) -> None:
        self._connection, self.job, self._query = connection.apart(), job, query
        self._first_attempt = job.attempt
        self._changed = Condition()
        self._is_closed = False
        self._pods: dict[str, Pod] = {}
        self._begun: dict[str, Pod] = {}
        self._reading: set[str] = set()
        self._has_news, self._is_limited = True, False
        self._merge = Merge[LogLine](QUIET if query.follow else math.inf)
        self._error: DDPJobError | None = None
        self._finished_at: float | None = None
        self.incomplete: list[str] = []
        """Pods of whose log lines are missing that nobody has any more."""

    @property
    def pods(self) -> list[Pod]:
        """Return the job's pods that exist."""
        return list(self._pods.values())

    @property
    def _processes(self) -> int:
        """Return the ranks of a pod. A job that has not started may still be edited."""
        return self.job.processes_per_node

    @property
    def read(self) -> list[Pod]:
        """Return the pods whose logs were read."""
        return list(self._begun.values())

    def batches(self) -> Iterator[list[LogLine]]:
        """Yield lines until the logs end; with `follow`, until the job does.

        Raises ClusterError or LoginFailed.
        """
        try:
            self._list_pods()
            if self._query.follow:
                self._spawn(self._watch_pods)
                self._spawn(self._watch_job)
            yield from self._lines()
        finally:
            self._is_closed = True
            self._connection.close()
            with self._changed:
                self._changed.notify_all()

    def _lines(self) -> Iterator[list[LogLine]]:
        while True:
            with self._changed:
                if self._error:
                    raise self._error
                self._begin()
                lines = self._merge.take(time.monotonic())
                is_over = self._is_over()
                if not lines and not is_over:
                    self._changed.wait(0.5 if self._merge.is_empty else QUIET / 4)
                elif lines:
                    self._changed.notify_all()  # readers may wait for room
            if lines:
                yield lines
            elif is_over:
                return

    def _is_over(self) -> bool:
        """Return whether no line will come any more."""
        if not self._query.follow:
            return not self._reading
        attempt = self._query.wanted.attempt
        if isinstance(attempt, int) and attempt < self.job.attempt:
            return not self._reading  # it is over, though the job is not
        if self._finished_at is None:
            return False
        # Pods that still run, which `cleanPodPolicy` allows, need not end with the job.
        awaited = self._reading
        if time.monotonic() - self._finished_at > GRACE_SECONDS:
            awaited = {uid for uid in self._reading if self._has_ended(uid)}
        return not awaited

    def _begin(self) -> None:
        """Read the logs of the wanted pods whose containers have started."""
        if not self._has_news:
            return
        self._has_news = False
        for pod in self._wanted():
            has_log = pod.state != "waiting" or not self._query.follow
            if has_log and pod.uid not in self._begun:
                self._begun[pod.uid] = pod
                self._reading.add(pod.uid)
                self._merge.open(pod.uid, time.monotonic())
                self._spawn(partial(self._read, pod))

    def _wanted(self) -> list[Pod]:
        """Return the pods to read, in order; of too many, those of the lowest ranks."""
        wanted, most = self._query.wanted, self._query.max_streams
        found = [
            pod
            for pod in self._pods.values()
            if wanted.has_pod(pod, self._processes, self._first_attempt)
        ]
        ranks = sorted({pod.node_rank for pod in found})
        if len(ranks) > most and not self._is_limited:
            self._is_limited = True
            shown = format_ranks(ranks[:most])
            self._connection.note(f"only pods {shown} of {len(ranks)} are shown (--max-streams)")
        found = [pod for pod in found if pod.node_rank in ranks[:most]]
        return sorted(found, key=lambda pod: (pod.attempt, pod.node_rank))

    def _read(self, pod: Pod) -> None:
        """Read one pod's log to its end."""
        log = PodLog(
            self._connection,
            self.job.namespace,
            pod,
            is_over=lambda: self._has_ended(pod.uid),
        )
        clock = Clock()
        try:
            for lines in self._batches(log, pod):
                timed = [
                    Timed(clock.moment(line.time.encode()), len(line.content), line)
                    for line in lines
                ]
                self._put(pod.uid, timed)
        finally:
            with self._changed:
                if not log.is_complete:
                    self.incomplete.append(pod.name)
                self._reading.discard(pod.uid)
                self._merge.close(pod.uid)
                self._changed.notify_all()

    def _batches(self, log: PodLog, pod: Pod) -> Iterator[list[LogLine]]:
        """Yield the wanted lines of a pod's log."""
        query = self._query
        # The pods of later attempts are read from their beginning.
        is_later = pod.attempt > self._first_attempt
        tail, since = (None, None) if is_later else (query.tail, query.since)
        # Which lines are the last wanted ones is known once all have come.
        searches = query.shows is not None or bool(query.wanted.ranks and self._processes > 1)
        whole = since is None and (tail is None or searches)
        maker = LineMaker(pod, self._processes, from_the_beginning=whole)

        def shown(pieces: Iterable[Piece]) -> list[LogLine]:
            return [line for line in maker.lines(pieces) if self._shows(line)]

        if tail is not None and searches:
            last = LastLines(tail)
            for pieces in log.rest(follow=False, since=since, goes_on=query.follow):
                last.add(shown(pieces))
            yield last.lines
        elif tail is not None:
            yield from map(shown, log.last(tail))
        if query.follow or tail is None:
            yield from map(shown, log.rest(follow=query.follow, since=since))

    def _shows(self, line: LogLine) -> bool:
        shows = self._query.shows
        return self._query.wanted.has_line(line) and (shows is None or shows(line))

    def _put(self, uid: str, lines: list[Timed[LogLine]]) -> None:
        with self._changed:
            while self._merge.is_full and not self._is_closed:
                self._changed.wait(QUIET)
            self._merge.put(uid, lines, time.monotonic())
            self._changed.notify_all()

    def _has_ended(self, uid: str) -> bool:
        """Return whether the pod's container has ended, or the pod is gone."""
        with self._changed:
            pod = self._pods.get(uid)
            return pod is None or pod.state == "ended"

    def _list_pods(self) -> None:
        """Read which pods there are now."""
        found = self._connection.list(
            PODS, namespace=self.job.namespace, labels=self._labels, keep=self._pod
        ).items
        with self._changed:
            self._pods = {pod.uid: pod for pod in found}
            self._has_news = True
            self._changed.notify_all()

    def _watch_pods(self) -> None:
        """Keep the pods up to date."""
        watch = self._connection.watch(
            PODS, namespace=self.job.namespace, labels=self._labels, keep=_slim
        )
        for event in watch:
            pod = self._pod(event.object)
            with self._changed:
                if event.type == "DELETED":
                    self._pods.pop(why.text(event.object, "metadata", "uid"), None)
                elif pod is not None:
                    self._pods[pod.uid] = pod
                self._has_news = True
                self._changed.notify_all()

    def _watch_job(self) -> None:
        """Keep the job up to date, until it is finished."""
        watch = self._connection.watch(DDPJOBS, namespace=self.job.namespace, after=self.job.body)
        if self.job.is_finished:
            return self._finish()
        for event in watch:
            if event.type == "DELETED":
                self._connection.note(f"-- {self.job.name} was deleted --")
                return self._finish()
            before, self.job = self.job, self.job.at(event.object)
            if note := restarted(before, self.job):
                self._connection.note(note)
            if self.job.is_finished:
                return self._finish()

    def _finish(self) -> None:
        """Take note that the job has ended. Its last pods may not have been seen yet."""
        self._list_pods()
        with self._changed:
            self._finished_at = time.monotonic()
            self._changed.notify_all()

    @property
    def _labels(self) -> str:
        return f"{names.JOB_LABEL}={self.job.name},{names.JOB_UID_LABEL}={self.job.uid}"

    def _pod(self, body: Body) -> Pod | None:
        return read_pod(body, self.job.name, self.job.uid)

    def _spawn(self, act: Callable[[], None]) -> None:
        def run() -> None:
            try:
                act()
            except DDPJobError as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()

        Thread(target=run, name="ddpjob-logs", daemon=True).start()


def restarted(before: "Job", now: "Job") -> str:
    """Return a line that says that a round is over and why; empty if none is."""
    old, new = (job.attempt for job in (before, now))
    if (old, before.round) == (new, now.round):
        return ""
    ended = f"attempt {old}" if new > old else f"round {before.round} of attempt {old}"
    status = now.body.get("status")
    is_cause = why.number(status, "failure", "attempt") == old
    cause = f": {why.cause(status)}" if is_cause else ""
    nodes = why.text(status, "summary", "nodes")
    pods = f" ({nodes} pods)" if nodes else ""
    follows = f"waiting for attempt {new}{pods}" if new > old else f"round {now.round} follows"
    return f"-- {ended} ended{cause}; {follows} --"


def _slim(body: Body) -> Body:
    """Return what `read_pod` reads."""
    kept = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
    metadata = body["metadata"]
    status = why.part(body, "status")
    parts = ("phase", "containerStatuses")
    return {
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"nodeName": why.part(body, "spec", "nodeName")},
        "status": {name: why.part(status, name) for name in parts},
    }
