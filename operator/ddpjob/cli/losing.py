"""Which jobs an uninstall deletes; and asks before.

A job that is deleted by mistake is lost with its pods and logs, and one that stays by mistake is
deleted by one more command. So where something is not clear, a job stays.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob.cli.confirm import check_can_ask, confirm
from ddpjob.cli.say import note
from ddpjob.client import why
from ddpjob.client.login import Login
from ddpjob.client.operators import Acting
from ddpjob.cluster import DDPJOBS, Resource
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body

# Jobs that are about to be lost of which so many are named.
LISTED = 20


@dataclass(frozen=True)
class Object:
    """An object, as far as it is told from others."""

    resource: Resource
    name: str
    namespace: str
    """Empty for a cluster-wide object."""
    uid: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Return the path of its URL."""
        return self.resource.path(self.namespace or None, self.name)


def read_object(resource: Resource, body: Body) -> Object:
    """Return what an object of Kubernetes is told from others by."""
    found: Any = body["metadata"]
    return Object(resource, found["name"], found.get("namespace") or "", found["uid"])


@dataclass(frozen=True)
class Job:
    """A job that is there."""

    found: Object
    state: str

    @property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return self.found.namespace

    @property
    def is_finished(self) -> bool:
        """Return whether the job has succeeded or failed."""
        return self.state in why.FINISHED


def read_job(body: Body) -> Job:
    """Return a job."""
    return Job(read_object(DDPJOBS, body), why.state(body.get("status")))


def doomed(jobs: Sequence[Job], here: Acting, others: Sequence[Acting]) -> list[Job]:
    """Return the jobs of the operator `here` that no other operator watches too; name those."""
    own = [job for job in jobs if here.watches(job.namespace)]
    rivals = {
        job.namespace: [other for other in others if other.watches(job.namespace)] for job in own
    }
    spared = Counter(job.namespace for job in own if rivals[job.namespace])
    for namespace, count in sorted(spared.items()):
        jobs_ = f"{count} DDPJob{'s' if count > 1 else ''} in namespace {namespace}"
        note(f"{jobs_}: not deleted, because the operator {rivals[namespace][0]} watches it too")
    return [job for job in own if not rivals[job.namespace]]


def nobody_knows(release: str, namespace: str) -> NotFound:
    """Return the error for a release without an operator, whose jobs could be any."""
    text = f"no operator of release {release} runs in namespace {namespace}"
    error = NotFound(404, "NotFound", f"{text}, so nobody knows which jobs are its")
    delete = "kubectl delete ddpjobs --all -n NAMESPACE"
    error.advice = f"leave --delete-jobs out, and delete the jobs of a namespace: {delete}"
    return error


def ask(lost: Sequence[Job], login: Login) -> None:
    """Ask whether these jobs may be deleted, and end the command if not.

    Raises typer.BadParameter where nobody can be asked.
    """
    check_can_ask()
    note(f"context {login.context or '(that of this pod)'}, {login.server}")
    order = sorted(lost, key=lambda job: (job.is_finished, job.namespace, job.found.name))
    for job in order[:LISTED]:
        note(f"{job.found.name}  {job.state}  in namespace {job.namespace}")
    if more := order[LISTED:]:
        note(f"… and {len(more)} more, in {len({job.namespace for job in more})} namespaces")
    what = "this job, its pods and their logs" if len(lost) == 1 else f"these {len(lost)} jobs"
    confirm(f"delete {what}?")


def read_left(uids: set[str], resource: Resource, body: Body) -> Object | None:
    """Return an object if one of these jobs has made it.

    Anybody may give an object our label, and keep an uninstall waiting.
    """
    owners = why.part(body, "metadata", "ownerReferences")
    owned = any(
        why.part(owner, "uid") in uids and why.part(owner, "controller") is True
        for owner in (owners if isinstance(owners, list) else ())
    )
    return read_object(resource, body) if owned else None
