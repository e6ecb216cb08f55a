"""How a command ends: exit codes, and errors as two lines: the error, and the next step."""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import typer

from ddpjob.cli.options import Place
from ddpjob.cli.output import note
from ddpjob.errors import (
    MAX_ANSWER,
    Conflict,
    DDPJobError,
    Forbidden,
    InvalidJob,
    JobFailed,
    JobTimeout,
    LoginFailed,
    NotFound,
    Refused,
    Unavailable,
)
from ddpjob.text import printable

if TYPE_CHECKING:
    from ddpjob.client.job import Job
    from ddpjob.client.snapshot import Snapshot


class Exit(IntEnum):
    """The exit codes of all commands. docs/cli.md has them too."""

    OK = 0
    """All went well."""
    JOB_FAILED = 1
    """The job has failed."""
    USAGE = 2
    """An option, an argument or a file is invalid."""
    NOT_FOUND = 3
    """There is no such job, or the cluster has no DDPJob API."""
    NO_ACCESS = 4
    """No login, a missing right, or a server that does not answer."""
    REFUSED = 5
    """The API server refuses the request: a conflict, a taken name, a quota, an admission rule.

    Or `doctor --admin` finds a fault of the installation.
    """
    UNFORESEEN = 70
    """A mistake of ddpjob itself. With `DDPJOB_DEBUG=1` in the environment it says where."""
    TIMEOUT = 124
    """The time that was allowed is over. A job that was waited for runs on."""
    DETACHED = 130
    """Ctrl-C, or a question that was answered with no. The job runs on."""


# In the environment: whether the traceback of an unforeseen error is printed too.
DEBUG = "DDPJOB_DEBUG"
# The first class that fits decides.
CODES: tuple[tuple[type[DDPJobError], Exit], ...] = (
    (JobFailed, Exit.JOB_FAILED),
    (InvalidJob, Exit.USAGE),
    (NotFound, Exit.NOT_FOUND),
    (LoginFailed, Exit.NO_ACCESS),
    (Forbidden, Exit.NO_ACCESS),
    (Unavailable, Exit.NO_ACCESS),
    (JobTimeout, Exit.TIMEOUT),
    (Conflict, Exit.REFUSED),
    (Refused, Exit.REFUSED),
    (DDPJobError, Exit.REFUSED),
)


def exit_code(error: DDPJobError) -> Exit:
    """Return the exit code that stands for an error."""
    if isinstance(error, Refused) and error.code in (400, 422):
        return Exit.USAGE  # the server has found what is invalid
    return next(code for kind, code in CODES if isinstance(error, kind))


def report(error: DDPJobError) -> Exit:
    """Print an error and its next step to standard error, and return the exit code."""
    text, advice = explain(error)
    note(f"error: {text}")
    if advice:
        note(f"  next: {advice}")
    return exit_code(error)


def end_with(problems: Sequence[InvalidJob]) -> None:
    """Print what is wrong with a job, and end the command; go on if nothing is."""
    for problem in problems:
        note(f"error: {problem}")
    if any(problem.path == "spec.image" for problem in problems):
        note("  next: --image IMAGE, any with python3 and torch")
    if problems:
        raise typer.Exit(Exit.USAGE)


def explain(error: DDPJobError) -> tuple[str, str]:
    """Return what went wrong, and the next step, which may be empty."""
    if not isinstance(error, Forbidden):
        return getattr(error, "message", "") or str(error), error.advice
    where = f"in namespace {error.namespace}" if error.namespace else "in the whole cluster"
    text = f"you may not {error.verb} {error.resource} {where} (you are {error.user})"
    enters = error.resource == "pods/portforward"  # by GET, as it begins a stream
    reads = error.verb in ("get", "list", "watch") and not enters
    role = "view" if reads else "edit"
    who = f"an admin of namespace {error.namespace}" if error.namespace else "the cluster's admin"
    return text, f'ask {who} for the role "{role}"'


def unsent(error: DDPJobError) -> list[str]:
    """Return lines that say why a save is not sent."""
    text, advice = explain(error)
    more = [f"  next: {advice}"] if advice else []
    return [f"-- saved: not sent, and tried again with the next save: {text} --", *more]


def report_unforeseen(error: Exception) -> Exit:
    """Print an error that nobody has foreseen, and return its exit code.

    It may quote anybody, and it is not code 1, which is a job that has failed.
    """
    if os.environ.get(DEBUG):
        note(*"".join(traceback.format_exception(error)).splitlines())
    note(printable(f"error: {type(error).__name__}: {error}", MAX_ANSWER))
    note(f"  next: it is a mistake of ddpjob; report it with what {DEBUG}=1 prints before it")
    return Exit.UNFORESEEN


def detached(job: "Snapshot", place: Place, again: str) -> Exit:
    """Say that the job runs on, and how to come back. `again` is the command that was left."""
    if job.is_finished:
        note(f"{job.name} has {job.state.lower()}")
        return Exit.DETACHED
    commands = {
        f"ddpjob {again}": "come back",
        f"ddpjob suspend {job.name}{place.flags}": "stop, keep the job",
        f"ddpjob delete {job.name}{place.flags}": "stop and remove",
    }
    width = max(map(len, commands))
    note("", "detached: the job runs on.")
    note(*(f"  {command:<{width}}  {means}" for command, means in commands.items()))
    return Exit.DETACHED


def ended(job: "Snapshot", place: Place, *, is_deleted: bool) -> Exit:
    """Say how the job has ended, and return the exit code that stands for it.

    It may not have ended: of one that goes on, an attempt that is over was looked at.
    """
    if job.state == "Succeeded":
        note(f"{job.name} succeeded")
        return Exit.OK
    if job.state == "Failed":
        note(f"{job.name} failed: {job.reason}")
        note(f"  next: ddpjob describe {job.name}{place.flags}")
        return Exit.JOB_FAILED
    if is_deleted:
        return Exit.NOT_FOUND  # as has been said
    note(f"that attempt is over, and {job.name} is {job.state} in attempt {job.attempt}")
    note(f"  next: ddpjob logs -f {job.name}{place.flags}")
    return Exit.OK


@contextmanager
def detaching(*lines: str) -> Iterator[None]:
    """Print these lines if Ctrl-C ends the block, and end the command with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        note("", *lines)
        raise typer.Exit(Exit.DETACHED) from None


def refuse_finished(job: "Job", advice: str) -> None:
    """Raise Conflict if the job has finished: it never starts again."""
    if job.is_finished:
        text = f"{job.name} has {job.state.lower()}; a finished job never starts again"
        raise Conflict(409, "Finished", text, advice=advice)


def until_suspended(job: "Job", left: str) -> "Job":
    """Return the job once its pods have ended. The line `left` is printed at Ctrl-C."""
    with detaching(left):
        note(f"{job.name} is {job.state}: waiting until its pods have ended")
        return job.until(lambda now: now.state == "Suspended" or now.is_finished)
