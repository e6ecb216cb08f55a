"""The jobs of a namespace."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ddpjob.client.connection import Connection
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api


class JobList(list[Job]):
    """Jobs, newest first. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        from ddpjob.client.html import table

        return table(self, time.time())


class Client:
    """The jobs of one namespace, by default that of the kubeconfig's context.

    Within a pod it is the namespace, and the service account, of the pod.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`note` is called with a line for people when the server does not answer at once."""
        self.connection = Connection(namespace, context=context, kubeconfig=kubeconfig, note=note)

    @classmethod
    def on(cls, connection: Connection) -> Self:
        """Return the client of a connection."""
        client = cls()
        client.connection = connection
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the requests under way, and close the connections that are kept open."""
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
        job: "api.DDPJob | Mapping[str, Any] | Path",
        *,
        code: Path | None = None,
        dry_run: bool = False,
    ) -> Job:
        """Create a job, with the folder `code` if there is one, and return it.

        Raises InvalidJob, AlreadyExists, Forbidden or another ClusterError. With `dry_run` the API
        server checks the job and stores nothing.
        """
        from ddpjob.client.submit import submit

        return submit(self, job, code=code, dry_run=dry_run)

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
        states = {word.strip().lower() for word in state.split(",")} if state else None
        me = self.user if mine else None

        def keep(body: Body) -> Job | None:
            job = Job(self.connection, _slim(body))
            if me is not None and job.user != me:
                return None
            return job if states is None or job.state.lower() in states else None

        namespace = None if all_namespaces else self.namespace
        found = self.connection.list(DDPJOBS, namespace=namespace, labels=labels, keep=keep).items
        return JobList(sorted(found, key=lambda job: (-(job.created or 0), job.name)))

    def newest(self) -> Job:
        """Return the newest job that this user has made with the client. Raises NotFound."""
        for job in self.jobs(mine=True):
            return job.refresh()
        text = f"no job of {self.user} in namespace {self.namespace}"
        error = NotFound(404, "NotFound", text)
        error.advice = "name one; ddpjob get has all jobs of the namespace"
        raise error


def _slim(body: Body) -> Body:
    """Return the object without what Kubernetes alone needs, which may be half of it."""
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return body
