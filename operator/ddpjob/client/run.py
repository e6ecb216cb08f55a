"""A call of `launch`: in a job of its own, or in the pods that a job keeps from an earlier call.

Each call in kept pods sends an archive that no other call has sent, so the job's code says whether
the job runs this call, and its revision whether the call has begun.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ddpjob import why
from ddpjob.client.job import Job
from ddpjob.cluster.connection import Connection
from ddpjob.cluster.logs import LogLine
from ddpjob.errors import Conflict, InvalidJob, NotFound
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob.client.display import News
    from ddpjob.code.archive import CodeArchive

ANEW = "launch anew, without job"


class Run(Job):
    """A call of `launch`. It is the job that runs it, in a cluster or on this machine.

    What it waits for is the end of this call. Once another one has been sent to the job, that
    raises Conflict.
    """

    def __init__(self, connection: Connection, body: Body) -> None:
        """`body` is the job as the call's own edit, or its creation, has left it."""
        super().__init__(connection, body)
        self._begin()

    @classmethod
    def within(
        cls,
        job: Job,
        args: Sequence[str],
        archive: "CodeArchive",
        env: Mapping[str, str],
        timeout: float | None,
    ) -> Self:
        """Have the job's ranks run something else in their pods, and return that call.

        Raises Conflict or NotFound if these are gone, InvalidJob, JobTimeout, JobRefused or another
        ClusterError.
        """
        from ddpjob.client import updates

        job = Job(job._connection, job.body)  # an earlier call stays what it is
        limits: dict[str, Any] = {"timeout": timeout, "refused_after": why.REFUSED_SECONDS}
        try:
            job.until(_is_ready, goal="ready for another call", **limits)
            new = updates.edited(job.body, archive, None, env)
            new["spec"]["args"] = list(args)
            job.patch(updates.patch(job._connection, job.body, new, archive))
        except NotFound as error:
            raise NotFound(404, "NotFound", f"{error.message}; {ANEW}") from None
        return cls(job._connection, job.body)

    @property
    def has_ended(self) -> bool:
        """Return whether the call has ended. Raises Conflict if another one has been sent."""
        if self._code != _code(self.body):
            text = f"{self.name} runs another call by now, or other code, and not this one"
            raise Conflict(409, "Conflict", text)
        if self.revision > self._before:
            return super().has_ended
        if self.is_finished:
            text = f"{self.name} had {self.state.lower()} before this call began; {ANEW}"
            raise Conflict(409, "Finished", text)
        return False

    def patch(self, changes: Mapping[str, Any]) -> Job:
        """Change the job by a JSON merge patch, and return it. Raises Conflict for another uid."""
        super().patch(changes)
        if "code" in changes.get("spec", {}):  # what this object sends is its own
            self._begin()
        return self

    def _begin(self) -> None:
        """Take the job as it is for the one of which this call's edit has just been made."""
        program, self._code = why.part(self.body, "status", "program"), _code(self.body)
        self._before = why.number(program, "revision") or 0
        # The last round whose lines are not this call's. One that has yet to begin may have them.
        is_ordered = self.state == "Restarting"
        self._last = (self.attempt, self.round - is_ordered) if program else (-1, 0)

    def _lines(self) -> "Iterator[News]":
        for line in super()._lines():
            if not isinstance(line, LogLine) or (line.attempt, line.round or 0) > self._last:
                yield line


def refuse(options: Mapping[str, object]) -> None:
    """Raise InvalidJob for an option of a new job that is given with `job`."""
    for option, value in options.items():
        if value is not None:
            rule = f"{option} cannot be given with job, whose pods are as they are"
            raise InvalidJob("launch", f"{rule}; {ANEW}")


def _code(job: Body) -> Any:
    return why.part(job, "spec", "code", "sha256")


def _is_ready(job: Job) -> bool:
    """Return whether the job has pods, or is about to have them.

    Raises Conflict if the pods are gone, and InvalidJob if `args` are not what it runs.
    """
    if job.is_finished or why.part(job.body, "spec", "suspend") is True:
        has = f"has {job.state.lower()}" if job.is_finished else "is suspended"
        raise Conflict(409, "Finished", f"{job.name} {has}, so it keeps no pods; {ANEW}")
    if why.part(job.body, "spec", "command"):
        raise InvalidJob("launch", f"{job.name} has a command of its own; {ANEW}")
    return job.state not in (*why.BEFORE_PODS, "Suspended")
