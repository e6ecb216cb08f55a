"""A job and its pods, kept up to date by threads while somebody reads the pods' logs."""

import time
from collections.abc import Callable
from threading import Condition, Thread

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.client.logs import Log, Pod, read_pod
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS, PODS
from ddpjob.json_depth import Body


class Tracked:
    """The job and its pods as they are now. `changed` guards them, and is told of each change."""

    def __init__(self, connection: Connection, job: Snapshot, container: str | None = None) -> None:
        self._connection, self.job, self._container = connection, job, container
        self.changed = Condition()
        self.pods: dict[str, Pod] = {}
        """The pods that exist, by uid."""
        self.has_news = True
        """Whether the pods have changed since somebody set it to False."""
        self.finished_at: float | None = None
        """When the job was seen to be finished, or deleted, on the monotonic clock."""
        self.is_deleted = False
        """Whether the job was seen to be deleted."""
        self.error: BaseException | None = None
        """What has ended one of the threads."""

    def list_pods(self) -> None:
        """Read which pods there are now. Raises ClusterError or LoginFailed."""
        found = self._connection.list(
            PODS, namespace=self.job.namespace, labels=self._labels, keep=self._pod
        ).items
        with self.changed:
            self.pods = {pod.uid: pod for pod in found}
            self._tell()

    def keep_up(self) -> None:
        """Keep the job and its pods up to date, until the connection is closed."""
        self.spawn(self._watch_pods)
        self.spawn(self._watch_job)

    def has_ended(self, log: Log) -> bool:
        """Return whether the pod's container has ended, or the pod is gone.

        An init container has ended too once another one's log is to be read.
        """
        with self.changed:
            pod = self.pods.get(log[0])
            return pod is None or pod.log != log or pod.state == "ended"

    def spawn(self, act: Callable[[], None]) -> None:
        """Do this in a thread. What it raises becomes `error`: somebody waits for its work."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                with self.changed:
                    self.error = self.error or error
                    self.changed.notify_all()

        Thread(target=run, name="ddpjob-logs", daemon=True).start()

    def _watch_pods(self) -> None:
        watch = self._connection.watch(PODS, namespace=self.job.namespace, labels=self._labels)
        for event in watch:
            pod = self._pod(event.object)
            with self.changed:
                if event.type == "DELETED":
                    self.pods.pop(why.text(event.object, "metadata", "uid"), None)
                elif pod is not None:
                    self.pods[pod.uid] = pod
                self._tell()

    def _watch_job(self) -> None:
        if self.job.is_finished:
            return self._finish()
        watch = self._connection.watch(DDPJOBS, namespace=self.job.namespace, after=self.job.body)
        for event in watch:
            if event.type == "DELETED":
                self.is_deleted = True
                self._connection.note(f"-- {self.job.name} was deleted --")
                return self._finish()
            before, self.job = self.job, Snapshot(event.object)
            if note := restarted(before, self.job):
                self._connection.note(note)
            if self.job.is_finished:
                return self._finish()

    def _finish(self) -> None:
        """Take note that the job has ended. Its last pods may not have been seen yet."""
        self.list_pods()
        with self.changed:
            self.finished_at = time.monotonic()
            self._tell()

    def _tell(self) -> None:
        self.has_news = True
        self.changed.notify_all()

    @property
    def _labels(self) -> str:
        return f"{names.JOB_LABEL}={self.job.name},{names.JOB_UID_LABEL}={self.job.uid}"

    def _pod(self, body: Body) -> Pod | None:
        return read_pod(body, self.job.name, self.job.uid, self._container)


def restarted(before: Snapshot, now: Snapshot) -> str:
    """Return a line that says that a round is over and why; empty if none is."""
    old, new = (job.attempt for job in (before, now))
    if (old, before.round) == (new, now.round):
        return ""
    ended = f"attempt {old}" if new > old else f"round {before.round} of attempt {old}"
    status = now.body.get("status")
    is_cause = why.number(status, "failure", "attempt") == old
    cause = f": {why.cause(status, now.processes_per_node)}" if is_cause else ""
    nodes = why.text(status, "summary", "nodes")
    pods = f" ({nodes} pods)" if nodes else ""
    follows = f"waiting for attempt {new}{pods}" if new > old else f"round {now.round} follows"
    return f"-- {ended} ended{cause}; {follows} --"
