"""Follows the logs of a job's pods: of those that there are, and of those that will be.

A thread reads each log, two more watch the job and its pods (`tracked`). All they find goes through
one lock to whoever reads the lines.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from ddpjob import names
from ddpjob.client.connection import Connection
from ddpjob.client.logs import LineMaker, Log, LogLine, Pod
from ddpjob.client.merge import QUIET, Merge
from ddpjob.client.podlog import PodLog
from ddpjob.client.resume import Line
from ddpjob.client.selection import Query
from ddpjob.client.snapshot import Snapshot
from ddpjob.client.tracked import Tracked
from ddpjob.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from ddpjob.ranks import format_ranks

# Pods of a finished job whose containers still run are followed for so long.
GRACE_SECONDS = 10.0
Timed = tuple[float, LogLine | None]


class Logs:
    """The lines of a job, in batches."""

    def __init__(self, connection: Connection, job: Snapshot, query: Query) -> None:
        self._connection, self._query = connection.apart(), query
        self._tracked = Tracked(self._connection, job, query.container)
        self._changed = self._tracked.changed
        self._first_attempt = job.attempt
        self._is_closed = self._is_limited = False
        self._begun: dict[Log, Pod] = {}
        self._reading: set[Log] = set()
        self._errors: list[ClusterError] = []
        self._merge = Merge[LogLine](QUIET if query.follow else math.inf)

    @property
    def job(self) -> Snapshot:
        """Return the job as it was seen last; after the last batch, as it has ended."""
        return self._tracked.job

    @property
    def is_deleted(self) -> bool:
        """Return whether the job was deleted while it was followed."""
        return self._tracked.is_deleted

    @property
    def pods(self) -> list[Pod]:
        """Return the job's pods that exist."""
        return list(self._tracked.pods.values())

    @property
    def read(self) -> list[Pod]:
        """Return the pods whose logs were read."""
        return list(self._begun.values())

    def batches(self) -> Iterator[list[LogLine]]:
        """Yield lines until the logs end; with `follow`, until the job does.

        Raises ClusterError or LoginFailed. Where one pod's log cannot be read, as of a node that
        does not answer, that is raised after the lines of all others.
        """
        try:
            self._tracked.list_pods()
            if self._query.follow:
                self._tracked.keep_up()
            yield from self._lines()
        finally:
            self._is_closed = True
            self._connection.close()
            with self._changed:
                self._changed.notify_all()

    def _lines(self) -> Iterator[list[LogLine]]:
        while True:
            with self._changed:
                if self._tracked.error:
                    raise self._tracked.error
                self._begin()
                lines = self._merge.take(time.monotonic())
                self._changed.notify_all()  # readers may wait for room
                is_over = self._is_over()
                if not lines and not is_over:
                    self._changed.wait(0.5 if self._merge.is_empty else QUIET / 4)
            if lines:
                yield lines
            elif is_over:
                if self._errors:
                    raise self._errors[0]
                return

    def _is_over(self) -> bool:
        """Return whether no line will come any more."""
        if not self._query.follow:
            return not self._reading
        attempt, finished_at = self._query.wanted.attempt, self._tracked.finished_at
        if isinstance(attempt, int) and attempt < self.job.attempt:
            return not self._reading  # it is over, though the job is not
        if finished_at is None:
            return False
        # Pods that still run, which `cleanPodPolicy` allows, need not end with the job.
        awaited = self._reading
        if time.monotonic() - finished_at > GRACE_SECONDS:
            awaited = set(filter(self._tracked.has_ended, self._reading))
        return not awaited

    def _begin(self) -> None:
        """Read the logs of the wanted pods whose containers have started.

        Raises NotFound if none of the pods has the wanted container.
        """
        if not self._tracked.has_news:
            return
        self._tracked.has_news = False
        wanted, container = self._wanted(), self._query.container
        found = [pod for pod in wanted if container in (None, *pod.containers)]
        if wanted and not found:
            text = f"no container of {self.job.name} is called {container!r}"
            has = f"{wanted[0].name} has {', '.join(wanted[0].containers)}"
            raise NotFound(404, "NotFound", f"{text}; {has}")
        for pod in found:
            has_log = pod.state != "waiting" or not self._query.follow
            if has_log and pod.log not in self._begun:
                if pod.container not in (container, names.TRAINER_CONTAINER):
                    text = f"init container {pod.container} failed ({pod.reason}); this is its log"
                    self._connection.note(f"{pod.name}: {text}")
                self._begun[pod.log] = pod
                self._reading.add(pod.log)
                number = self._merge.open(time.monotonic())
                self._tracked.spawn(partial(self._read, pod, number))

    def _wanted(self) -> list[Pod]:
        """Return the pods to read, in order; of too many, those of the lowest ranks."""
        wanted, most = self._query.wanted, self._query.max_streams
        found = [
            pod
            for pod in self.pods
            if wanted.has_pod(pod, self.job.processes_per_node, self._first_attempt)
        ]
        ranks = sorted({pod.node_rank for pod in found})
        if len(ranks) > most and not self._is_limited:
            self._is_limited = True
            shown = format_ranks(ranks[:most])
            self._connection.note(f"only pods {shown} of {len(ranks)} are shown (--max-streams)")
        found = [pod for pod in found if pod.node_rank in ranks[:most]]
        return sorted(found, key=lambda pod: (pod.attempt, pod.node_rank))

    def _read(self, pod: Pod, number: int) -> None:
        """Read one pod's log to its end. The number is that of the log in the merge."""
        log = PodLog(
            self._connection,
            self.job.namespace,
            pod,
            is_over=lambda: self._tracked.has_ended(pod.log),
        )
        error = None
        try:
            for lines in self._batches(log, pod):
                self._put(number, lines)
        except BaseException as raised:
            error = raised
        with self._changed:  # all at once: whoever sees that no log is read sees why
            if error is not None:
                self._fail(pod, error)
            elif not (log.is_complete or self._is_closed):
                text = "lines are missing, which nobody has any more"
                self._connection.note(f"{pod.name}: {text}")
            self._reading.discard(pod.log)
            self._merge.close(number)
            self._changed.notify_all()

    def _fail(self, pod: Pod, error: BaseException) -> None:
        """Take note of why a pod's log could not be read to its end."""
        if not isinstance(error, (Unavailable, Refused)) or isinstance(error, Forbidden):
            self._tracked.error = self._tracked.error or error
        elif not self._is_closed:
            if self._errors or self._query.follow:  # the first one is raised in the end
                self._connection.note(f"{pod.name}: {error}")
            self._errors.append(error)

    def _batches(self, log: PodLog, pod: Pod) -> Iterator[list[Timed]]:
        """Yield the wanted lines of a pod's log, or None for the last of many unwanted ones."""
        query, processes = self._query, self.job.processes_per_node
        # The pods of later attempts are read from their beginning.
        is_later = pod.attempt > self._first_attempt
        tail, since = (None, None) if is_later else (query.tail, query.since)
        # Which lines are the last wanted ones is known once all have come.
        searches = query.shows is not None or bool(query.wanted.ranks and processes > 1)
        whole = since is None and (tail is None or searches)
        maker = LineMaker(pod, processes, from_the_beginning=whole)

        def shown(lines: Iterable[Line]) -> list[Timed]:
            made = ((line.seconds, maker.line(line.text, line.time)) for line in lines)
            return [(seconds, line) for seconds, line in made if self._shows(line)]

        if tail is not None:
            last = deque[Timed](maxlen=tail)
            # Of none it still reads the last one, after which the new ones come.
            count = None if searches else max(1, tail)
            for lines in log.lines(follow=False, tail=count, since=since, goes_on=query.follow):
                last.extend(shown(lines))
            yield list(last)
        if query.follow or tail is None:
            for lines in log.lines(follow=query.follow, since=since):
                yield shown(lines) or [(line.seconds, None) for line in lines[-1:]]

    def _shows(self, line: LogLine) -> bool:
        shows = self._query.shows
        return self._query.wanted.has_line(line) and (shows is None or shows(line))

    def _put(self, number: int, lines: list[Timed]) -> None:
        with self._changed:
            while self._merge.is_full(number) and not self._is_closed:
                self._changed.wait()
            self._merge.put(number, lines)
            self._changed.notify_all()
