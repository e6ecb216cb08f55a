"""Follows the logs of a job's pods: of those that there are, and of those that will be.

Threads read the logs and watch the job and its pods. What the watches have found is looked at by
whoever reads the lines; each change of theirs is one assignment, so there is no lock.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from ddpjob import names, why
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS, PODS
from ddpjob.cluster.connection import CLOSED, Connection
from ddpjob.cluster.logs import (
    LineMaker,
    Log,
    LogLine,
    Pod,
    Wanted,
    parse_numbers,
    read_pod,
    with_rank,
)
from ddpjob.cluster.merge import QUIET, Merge
from ddpjob.cluster.podlog import PodLog
from ddpjob.cluster.resume import Line
from ddpjob.cluster.threads import Pipe
from ddpjob.errors import ClusterError, Forbidden, NotFound, Refused, Unavailable
from ddpjob.json_depth import Body
from ddpjob.ranks import format_ranks
from ddpjob.times import unix_seconds

# Of the rank that failed first.
FAILURE_LINES = 50


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
    container: str | None = None
    """A container by its name; None for the trainer, or the init container that failed."""
    why: str = ""
    """What is shown, where nobody has chosen it."""


def select(
    *,
    rank: int | str | None = None,
    node: int | str | None = None,
    everything: bool = False,
    attempt: int | str = "current",
) -> Wanted | None:
    """Return what somebody asks for; None if that is nothing in particular.

    Raises ValueError for a text that is no set of numbers, or no attempt.
    """
    if attempt not in ("all", "current"):
        if not str(attempt).isdecimal():
            raise ValueError(f"attempt: must be a number, current or all, got {attempt!r}")
        attempt = int(attempt)
    ranks, nodes = (None if text is None else parse_numbers(str(text)) for text in (rank, node))
    if not everything and ranks is None and nodes is None:
        if attempt == "current":
            return None
        ranks = frozenset({0}) if attempt != "all" else None
    return Wanted(ranks, nodes, attempt)


def check_is_there(job: Snapshot, wanted: Wanted) -> None:
    """Raise NotFound if the job's current attempt has had none of these ranks, or nodes."""
    if wanted.attempt != "current":  # an attempt that is over may have been larger
        return
    nodes, world = job.most_nodes, job.most_nodes * job.processes_per_node
    for kind, asked, count in (("rank", wanted.ranks, world), ("node", wanted.nodes, nodes)):
        if asked and asked.isdisjoint(range(count)):
            there = f"ranks 0 to {count - 1}" if count > 1 else "rank 0 alone"
            has = f"it has {'node ' * (kind == 'node')}{there}"
            text = f"{job.name} has no {kind} {format_ranks(asked)}; {has}"
            raise NotFound(404, "NotFound", text)


def choices(job: Snapshot, wanted: Wanted | None, query: Query) -> list[Query]:
    """Return the queries, to be read one after the other, for the wanted lines of a job.

    If nobody says what is wanted, they are the last lines of the rank that failed first, if the job
    failed, restarts or is Idle for it, and then rank 0 from the failure on.
    """
    if wanted is not None:
        return [replace(query, wanted=wanted)]
    status, rank_0 = job.body.get("status"), Wanted(frozenset({0}))
    failed = whose_lines(status, job.processes_per_node)
    if not why.has_failed(status) or failed is None:
        return [replace(query, wanted=rank_0)]
    kind, number = failed
    attempt = why.number(status, "failure", "attempt") or 0
    first = replace(
        query,
        wanted=Wanted(**{f"{kind}s": frozenset({number})}, attempt=attempt),
        # Who searches wants all that there is.
        tail=FAILURE_LINES if query.tail is None and query.shows is None else query.tail,
        why=f"the last lines of {kind} {number}, which failed first in attempt {attempt}",
    )
    if not query.follow or job.is_finished:
        return [replace(first, follow=False)]
    if failed == ("rank", 0) and attempt == job.attempt:
        return [replace(first, wanted=rank_0)]  # and what comes after them
    failed_at = unix_seconds(why.text(status, "failure", "time"))
    since = failed_at if query.since is None else query.since
    return [replace(first, follow=False), replace(query, wanted=rank_0, since=since)]


def whose_lines(status: object, processes: int) -> tuple[Literal["rank", "node"], int] | None:
    """Return the rank whose lines say why the last attempt failed, or the node rank of its pod."""
    rank, node = why.place(status, why.part(status, "failure"), processes)
    # A script may have started more ranks than the job says, and their lines are in its pod's.
    if rank is not None and rank // processes == node:
        return "rank", rank
    return None if node is None else ("node", node)


# Pods of a finished job whose containers still run are followed for so long.
GRACE_SECONDS = 10.0
Timed = tuple[float, LogLine]


class Logs:
    """The lines of a job, in batches."""

    def __init__(self, connection: Connection, job: Snapshot, query: Query) -> None:
        self._connection, self._query = connection.apart(), query
        self.job = job
        """The job as it was seen last; after the last batch, as it has ended."""
        self.is_deleted = False
        """Whether the job was deleted while it was followed."""
        self.pods: dict[str, Pod] = {}
        """The job's pods that exist, by uid."""
        self.read: dict[Log, Pod] = {}
        """The pods whose logs were read."""
        self._first_attempt = job.attempt
        self._labels = f"{names.JOB_LABEL}={job.name},{names.JOB_UID_LABEL}={job.uid}"
        self._finished_at = math.inf
        self._is_limited = False
        self._errors: list[ClusterError] = []
        self._open = set[Log]()  # those that are being read
        self._merge = Merge[LogLine](QUIET if query.follow else math.inf)
        self._watches = Pipe[None](self._merge.has_news.set)

    def batches(self) -> Iterator[list[LogLine]]:
        """Yield lines until the logs end; with `follow`, until the job does.

        Raises ClusterError or LoginFailed. Where one pod's log cannot be read, as of a node that
        does not answer, that is raised after the lines of all others.
        """
        try:
            self._list_pods()
            if self._query.follow:
                self._watches.read(self._watch_pods)
                self._watches.read(self._watch_job)
            yield from self._lines()
        finally:
            self._watches.close()
            self._merge.close()
            self._connection.close()
        if self._errors:
            raise self._errors[0]

    def _lines(self) -> Iterator[list[LogLine]]:
        self._begin()
        while True:
            self._merge.has_news.clear()
            has_all_pods = self._has_all_pods()  # asked before they are looked at
            if self._watches.take(0) or has_all_pods:
                self._begin()
            if lines := self._merge.take():
                yield lines
            elif has_all_pods and not self._is_awaited():
                return
            else:
                self._merge.has_news.wait(QUIET / 4)

    def _has_all_pods(self) -> bool:
        """Return whether no pod will come any more whose log is wanted."""
        attempt = self._query.wanted.attempt
        is_past = isinstance(attempt, int) and attempt < self.job.attempt
        return not self._query.follow or is_past or self._finished_at < math.inf

    def _is_awaited(self) -> bool:
        """Return whether a log will bring lines.

        Pods that still run, which `cleanPodPolicy` allows, need not end with the job.
        """
        if time.monotonic() > self._finished_at + GRACE_SECONDS:
            still_run = [not self._has_ended(log) for log in tuple(self._open)]
            if still_run and all(still_run):
                return False
        return not self._merge.is_over

    def _begin(self) -> None:
        """Read the logs of the wanted pods whose containers have started.

        Raises NotFound if none of the pods has the wanted container.
        """
        wanted, container = self._wanted(), self._query.container
        found = [pod for pod in wanted if container in (None, *pod.containers)]
        if wanted and not found:
            text = f"no container of {self.job.name} is called {container!r}"
            has = f"{wanted[0].name} has {', '.join(wanted[0].containers)}"
            raise NotFound(404, "NotFound", f"{text}; {has}")
        for pod in found:
            has_log = pod.state != "waiting" or not self._query.follow
            if has_log and pod.log not in self.read:
                if pod.container not in (container, names.TRAINER_CONTAINER):
                    text = f"init container {pod.container} failed ({pod.reason}); this is its log"
                    self._connection.note(f"{pod.name}: {text}")
                self.read[pod.log] = pod
                self._open.add(pod.log)
                self._merge.read(partial(self._read, pod))

    def _wanted(self) -> list[Pod]:
        """Return the pods to read, in order; of too many, those of the lowest ranks."""
        wanted, most = self._query.wanted, self._query.max_streams
        found = [
            pod
            for pod in (with_rank(pod, self.job.body) for pod in tuple(self.pods.values()))
            if wanted.has_pod(pod, self.job.processes_per_node, self._first_attempt)
        ]
        ranks = sorted({pod.node_rank for pod in found}, key=lambda rank: (rank < 0, rank))
        if len(ranks) > most and not self._is_limited:
            self._is_limited = True
            shown = format_ranks(rank for rank in ranks[:most] if rank >= 0)
            self._connection.note(f"only pods {shown} of {len(ranks)} are shown (--max-streams)")
        found = [pod for pod in found if pod.node_rank in ranks[:most]]
        return sorted(found, key=lambda pod: (pod.attempt, pod.node_rank))

    def _read(self, pod: Pod) -> Iterator[list[Timed]]:
        """Yield the wanted lines of one pod's log, to its end."""
        try:
            yield from self._wanted_lines(pod)
        except (Unavailable, Refused) as error:
            if isinstance(error, Forbidden) or error.reason == CLOSED:
                raise
            if self._errors or self._query.follow:  # the first one is raised in the end
                self._connection.note(f"{pod.name}: {error}")
            self._errors.append(error)
        finally:
            self._open.discard(pod.log)

    def _wanted_lines(self, pod: Pod) -> Iterator[list[Timed]]:
        query, processes = self._query, self.job.processes_per_node
        log = PodLog(
            self._connection, self.job.namespace, pod, is_over=lambda: self._has_ended(pod.log)
        )
        # The pods of later attempts are read from their beginning.
        is_later = pod.attempt > self._first_attempt
        tail, since = (None, None) if is_later else (query.tail, query.since)
        # Which lines are the last wanted ones is known once all have come.
        searches = query.shows is not None or bool(query.wanted.ranks and processes > 1)
        searches |= pod.moved or pod.node_rank < 0  # its log says which ranks it has had
        whole = since is None and (tail is None or searches)
        as_named = replace(self.pods.get(pod.uid, pod), container=pod.container)
        maker = LineMaker(as_named if whole else pod, processes, from_the_beginning=whole)

        def shown(lines: Iterable[Line]) -> list[Timed]:
            made = ((line.seconds, maker.line(line.text, line.time)) for line in lines)
            wanted = (each for each in made if query.wanted.has_line(each[1]))
            return [each for each in wanted if query.shows is None or query.shows(each[1])]

        if tail is not None:
            last = deque[Timed](maxlen=tail)
            # Of none it still reads the last one, after which the new ones come.
            count = None if searches else max(1, tail)
            for lines in log.lines(follow=False, tail=count, since=since, goes_on=query.follow):
                last.extend(shown(lines))
            yield list(last)
        if query.follow or tail is None:
            for lines in log.lines(follow=query.follow, since=since):
                yield shown(lines)

    def _has_ended(self, log: Log) -> bool:
        """Return whether the pod's container has ended, or the pod is gone.

        An init container has ended too once another one's log is to be read.
        """
        pod = self.pods.get(log[0])
        return pod is None or pod.log != log or pod.state == "ended"

    def _list_pods(self) -> None:
        found = self._connection.list(
            PODS, namespace=self.job.namespace, labels=self._labels, keep=self._pod
        )
        for pod in found.items:
            self.pods.setdefault(pod.uid, pod)  # the watch may know it better

    def _pod(self, body: Body) -> Pod | None:
        return read_pod(body, self.job.name, self.job.uid, self._query.container)

    def _watch_pods(self) -> Iterator[None]:
        watch = self._connection.watch(PODS, namespace=self.job.namespace, labels=self._labels)
        for event in watch:
            if event.type == "DELETED":
                self.pods.pop(why.text(event.object, "metadata", "uid"), None)
            elif pod := self._pod(event.object):
                self.pods[pod.uid] = pod
            yield None

    def _watch_job(self) -> Iterator[None]:
        """Keep the job up to date until it has ended. Its last pods may not have been seen then."""
        watch = self._connection.watch(DDPJOBS, namespace=self.job.namespace, known=[self.job.body])
        for event in () if self.job.is_finished else watch:
            if event.type == "DELETED":
                self.is_deleted = True
                self._connection.note(f"-- {self.job.name} was deleted --")
                break
            before, self.job = self.job, Snapshot(event.object)
            if note := restarted(before, self.job):
                self._connection.note(note)
            if self.job.is_finished:
                break
            yield None
        self._list_pods()
        self._finished_at = time.monotonic()
        yield None


def restarted(before: Snapshot, now: Snapshot) -> str:
    """Return a line that says that a round is over and why; empty if none is."""
    old, new = (job.attempt for job in (before, now))
    if (old, before.round) == (new, now.round):
        return ""
    ended = f"attempt {old}" if new > old else f"round {before.round} of attempt {old}"
    status = now.body.get("status")
    is_cause = why.number(status, "failure", "attempt") == old
    is_cause &= (why.number(status, "failure", "round") or 0) == before.round
    cause = f": {why.cause(status, now.processes_per_node)}" if is_cause else ""
    nodes = why.text(status, "summary", "nodes")
    pods = f" ({nodes} pods)" if nodes else ""
    follows = f"waiting for attempt {new}{pods}" if new > old else f"round {now.round} follows"
    if now.state == "Idle":
        follows = "its pods stay, for an edit of args, env or code"
    elif now.revision > before.revision:
        follows += f", with revision {now.revision}"
    return f"-- {ended} ended{cause}; {follows} --"
