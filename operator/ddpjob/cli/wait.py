"""`ddpjob wait`: ends when jobs do, with their result."""

import json
import time
from typing import Annotated

import typer

from ddpjob import why
from ddpjob.cli.exits import Exit, detached
from ddpjob.cli.options import Names, Place, Recorded, bad, find, seconds
from ddpjob.cli.output import Record, note, say
from ddpjob.client.job import Job, parse_until
from ddpjob.errors import JobTimeout
from ddpjob.times import duration


def wait(
    place: Place,
    names: Names = None,
    until: Annotated[
        str, typer.Option("--for", help="finished, running, or step=N: that step at least.")
    ] = "finished",
    timeout: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Give up after a time such as 8h."),
    ] = None,
    refused_after: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Give up on a job whose pods are refused for so long. By default it is 30s.",
        ),
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Until one of the jobs is, not all.")] = False,
    output: Recorded = "text",
) -> None:
    """Wait for jobs, by default until they have finished, or are Idle.

    A line is printed for each job. The exit code is 0 if all have succeeded, or are as far as
    --for says. It is 1 if one has failed, 3 if one was deleted, 5 if the pods of one are refused,
    and 124 after --timeout. Ctrl-C ends the command (130), and the jobs run on.
    """
    try:
        wanted = parse_until(until)
    except ValueError as error:
        raise bad(str(error), "--for") from None
    client = place.client()
    found = [find(client, name) for name in names] if names else [find(client, None)]
    # The same job twice is one job.
    left = {job.uid: job for job in found}
    limits = {
        "timeout": timeout,
        "refused_after": why.REFUSED_SECONDS if refused_after is None else refused_after,
    }
    shown = Shown(output)
    code = Exit.OK
    try:
        for job in client.changes(list(left.values()), left=left, **limits):
            if job.uid not in left:
                continue
            left[job.uid] = job
            if not job.is_at(wanted):
                shown.progress(job)
                continue
            shown.end(job)
            del left[job.uid]
            code = Exit.JOB_FAILED if job.has_failed else code
            if any_ or not left:
                raise typer.Exit(code)
    except KeyboardInterrupt:
        again = ["wait", *(names or ())]
        again += ["--for", until] if until != "finished" else []
        again += ["--any"] if any_ else []
        job = next(iter(left.values()))
        raise typer.Exit(detached(job, place, " ".join(again) + place.flags)) from None
    text = ", ".join(
        f"{job.name} is {job.state}{' before its edit runs' * (job.state == 'Idle')}"
        for job in left.values()
    )
    job = next(iter(left.values()))
    raise JobTimeout(job, f"{text} after {duration(timeout or 0)}, not {until}")


class Shown:
    """Prints how jobs are that are waited for."""

    def __init__(self, output: Record) -> None:
        self._output = output
        self._began = time.monotonic()
        self._told: dict[str, tuple[str, ...]] = {}

    def progress(self, job: Job) -> None:
        """Say how the job is if that has changed, but for its steps."""
        nodes = why.text(job.body, "status", "summary", "nodes")
        told = (job.state, nodes, job.reason)
        if self._told.get(job.uid) != told:
            self._told[job.uid] = told
            passed = duration(time.monotonic() - self._began)
            because = why.with_time(job.reason, job.body.get("status"), time.time())
            parts = [job.name, job.state, passed, f"{nodes} nodes" if nodes else "", because]
            note("  ".join(filter(None, parts)))

    def end(self, job: Job) -> None:
        """Print the job's result."""
        if self._output == "json":
            say(json.dumps(job.to_record()))
        else:
            say(f"{job.name} {job.state}")
