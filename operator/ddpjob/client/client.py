"""The jobs of a namespace."""

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot, watch_jobs
from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.connection import Connection
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.jobfile import JobFile
    from ddpjob.code.archive import CodeArchive


class JobList(list[Job]):
    """Jobs, newest first. A notebook shows them as a table."""

    def _repr_html_(self: Sequence[Snapshot]) -> str:
        from ddpjob.client.display import table

        return table(self, time.time())


class Connected:
    """What has a connection to an API server."""

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`note` is called, perhaps in a thread, with a line for people when the server is slow."""
        self.connection = Connection(namespace, context=context, kubeconfig=kubeconfig, note=note)


class Client(Connected):
    """The jobs of one namespace, by default that of the kubeconfig's context.

    Within a pod it is the namespace, and the service account, of the pod.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is being read, and close the connections that are kept open."""
        self.connection.close()

    @property
    def namespace(self) -> str:
        """Return the namespace whose jobs these are."""
        return self.connection.namespace

    @property
    def user(self) -> str:
        """Return the user's name, as it stands in the annotation of her jobs."""
        return self.connection.user

    def submit(
        self,
        job: "api.DDPJob | Mapping[str, Any] | Path | JobFile",
        *,
        code: "Path | CodeArchive | None" = None,
        dry_run: bool = False,
    ) -> Job:
        """Create a job, with the folder `code` if there is one, and return it.

        `job` may be a job file, YAML or JSON; the ConfigMaps with its code may stand beside it.
        `code` may be packed already, and replaces these. Jobs with the same code share its
        ConfigMaps, which go with the last of them. Raises InvalidJob, AlreadyExists, Forbidden or
        another ClusterError; then the job does not exist. With `dry_run` the API server checks all
        objects and stores none.
        """
        from ddpjob.client import creation

        body = creation.submit(self.connection, job, code=code, dry_run=dry_run)
        return Job(self.connection, body)

    def job(self, name: str) -> Job:
        """Return the job of this name. Raises NotFound."""
        return Job(self.connection, self.connection.get(DDPJOBS, name))

    def jobs(
        self,
        *,
        state: str | None = None,
        mine: bool = False,
        labels: str = "",
        all_namespaces: bool = False,
    ) -> JobList:
        """Return jobs, newest first.

        `state` is one state, or several with commas between. `mine` are those that this user made
        with the client. `labels` is a label selector.
        """
        me = self.user if mine else None

        def keep(body: Body) -> Job | None:
            job = Job(self.connection, body)
            return job if is_selected(job, state, me) else None

        namespace = None if all_namespaces else self.namespace
        found = self.connection.list(DDPJOBS, namespace=namespace, labels=labels, keep=keep).items
        return JobList(sorted(found, key=lambda job: (-(job.created or 0), job.name)))

    def changes(
        self,
        jobs: Sequence[Snapshot],
        *,
        timeout: float | None = None,
        left: Container[str] | None = None,
        refused_after: float | None = None,
    ) -> Iterator[Job]:
        """Yield these jobs now, then each again when it changes, for `timeout` seconds.

        All are of one namespace. Raises NotFound if one is deleted whose uid is `left`: by default
        each of them, else those that the caller has left there. Raises JobRefused once the pods of
        one have been refused for `refused_after` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        yield from (Job(self.connection, job.body) for job in jobs)
        watch = watch_jobs(
            self.connection, jobs, deadline=deadline, refused_after=refused_after, left=left
        )
        with closing(watch) as bodies:
            for body in bodies:
                yield Job(self.connection, body)

    def newest(self) -> Job:
        """Return the newest job that this user has made with the client. Raises NotFound."""
        if jobs := self.jobs(mine=True):
            return jobs[0]
        error = NotFound(404, "NotFound", f"no job of {self.user} in namespace {self.namespace}")
        error.advice = "name one; ddpjob get has all jobs of the namespace"
        raise error


def is_selected(job: Snapshot, state: str | None, user: str | None) -> bool:
    """Return whether a job is in one of the states, and the user's; None is any."""
    states = {word.strip().lower() for word in state.split(",")} if state else None
    is_users = user is None or job.user == user
    return is_users and (states is None or job.state.lower() in states)
