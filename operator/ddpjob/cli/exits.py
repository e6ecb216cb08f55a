"""How a command ends: exit codes, and errors as two lines: the error, and the next step."""

import os
import traceback
from collections.abc import Sequence
from enum import IntEnum

import typer

from ddpjob.cli.say import note
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
    if isinstance(error, Forbidden):
        return _missing_right(error)
    return getattr(error, "message", "") or str(error), error.advice


def _missing_right(error: Forbidden) -> tuple[str, str]:
    where = f"in namespace {error.namespace}" if error.namespace else "in the whole cluster"
    text = f"you may not {error.verb} {error.resource} {where} (you are {error.user})"
    enters = error.resource == "pods/portforward"  # by GET, as it begins a stream
    reads = error.verb in ("get", "list", "watch") and not enters
    role = "view" if reads else "edit"
    who = f"an admin of namespace {error.namespace}" if error.namespace else "the cluster's admin"
    return text, f'ask {who} for the role "{role}"'


def report_unforeseen(error: Exception) -> Exit:
    """Print an error that nobody has foreseen, and return its exit code.

    It may quote anybody, and it is not code 1, which is a job that has failed.
    """
    if os.environ.get(DEBUG):
        note(*"".join(traceback.format_exception(error)).splitlines())
    note(printable(f"error: {type(error).__name__}: {error}", MAX_ANSWER))
    note(f"  next: it is a mistake of ddpjob; report it with what {DEBUG}=1 prints before it")
    return Exit.UNFORESEEN
