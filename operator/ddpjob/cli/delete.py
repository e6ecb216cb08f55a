"""`ddpjob delete`: deletes jobs, and with each of them all that it owns."""

import os
from typing import Annotated, Literal

import typer

from ddpjob.cli.exits import Exit, detaching
from ddpjob.cli.options import Place, bad, complete_names, plain_name
from ddpjob.cli.output import note, say, show_jobs
from ddpjob.client.job import Job

STDIN, STDERR = 0, 2


def delete(
    place: Place,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Jobs.", autocompletion=complete_names),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--selector", "-l", help="Label selector, such as sweep=lr, instead of names."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal it is needed.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until their pods are gone.")] = False,
    output: Annotated[
        Literal["name"] | None,
        typer.Option("--output", "-o", help="name: print the jobs by kind and name."),
    ] = None,
) -> None:
    """Delete jobs, with their pods and logs. Checkpoints in volumes stay.

    No job is deleted unless all of them exist. The exit code is 130 if the question is answered
    with anything but yes; nothing is deleted then.
    """
    if bool(names) == bool(labels):
        raise bad("give the NAMEs of jobs or --selector, one of the two")
    client = place.client()
    jobs: list[Job]
    if names:
        jobs = [client.job(name) for name in dict.fromkeys(map(plain_name, names))]
    elif not (jobs := [*client.jobs(labels=labels or "")]):
        note(f"no job in namespace {client.namespace} has the labels {labels}")
        return
    if not yes:
        _ask(jobs)
    for job in jobs:
        job.delete()
        if output == "name":
            show_jobs([job], "name", single=True)
        else:
            say(f"{job.name} deleted")
    if wait:
        for job in jobs:
            with detaching("detached: the deletion goes on"):
                note(f"waiting until the pods of {job.name} are gone")
                job.wait_until_gone()


def _ask(jobs: list[Job]) -> None:
    """Ask on the terminal whether these jobs are to be deleted, and end if not."""
    if not (os.isatty(STDIN) and os.isatty(STDERR)):
        raise bad("needed, as there is no terminal to ask on", "--yes")
    for job in jobs:
        note(f"{job.name}  {job.state}  in namespace {job.namespace}")
    what = "this job, its pods and their logs" if len(jobs) == 1 else f"these {len(jobs)} jobs"
    try:
        is_wanted = typer.confirm(f"delete {what}?", err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        note("")
        is_wanted = False
    if not is_wanted:
        note("nothing was deleted")
        raise typer.Exit(Exit.DETACHED)
