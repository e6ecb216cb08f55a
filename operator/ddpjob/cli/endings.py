"""How a command that waits ends: with the job, or before it, by Ctrl-C."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Place
from ddpjob.cli.say import note
from ddpjob.client.snapshot import Snapshot


def detached(job: Snapshot, place: Place, again: str) -> Exit:
    """Say that the job runs on, and how to come back. `again` is the command that was left."""
    if job.is_finished:
        note(f"{job.name} has {job.state.lower()}")
        return Exit.DETACHED
    commands = {
        f"ddpjob {again}{place.flags}": "come back",
        f"ddpjob suspend {job.name}{place.flags}": "stop, keep the job",
        f"ddpjob delete {job.name}{place.flags}": "stop and remove",
    }
    width = max(map(len, commands))
    note("", "detached: the job runs on.")
    note(*(f"  {command:<{width}}  {means}" for command, means in commands.items()))
    return Exit.DETACHED


def ended(job: Snapshot, place: Place, *, is_deleted: bool) -> Exit:
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
