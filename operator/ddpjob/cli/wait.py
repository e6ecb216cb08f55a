"""`ddpjob wait`: ends when jobs do, with their result."""

import json
import time
from typing import Annotated

import typer

from ddpjob.cli.endings import detached
from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Context, Kubeconfig, Names, Namespace, Place, Record, find
from ddpjob.cli.say import note, say
from ddpjob.cli.values import bad, seconds
from ddpjob.client import why
from ddpjob.client.job import Job, parse_until
from ddpjob.errors import JobTimeout
from ddpjob.times import duration


def wait(
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
    output: Annotated[
        Record, typer.Option("--output", "-o", help="text, or json: an object a job.")
    ] = (Record.TEXT),
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait for jobs, by default until they have finished.

    A line is printed for each job. The exit code is 0 if all have succeeded, or are as far as
    --for says. It is 1 if one has failed, 3 if one was deleted, 5 if the pods of one are refused,
    and 124 after --timeout. Ctrl-C ends the command (130), and the jobs run on.
    """
    place = Place(namespace, context, kubeconfig)
    waiting = Wait(
        place, until, output, until_any=any_, timeout=timeout, refused_after=refused_after
    )
    raise typer.Exit(waiting.run(names or []))


class Wait:
    """One wait. `until` is what `Job.wait` takes. Raises typer.BadParameter for another text."""

    def __init__(
        self,
        place: Place,
        until: str,
        output: Record,
        *,
        until_any: bool,
        timeout: float | None,
        refused_after: float | None,
    ) -> None:
        try:
            self._wanted = parse_until(until)
        except ValueError as error:
            raise bad(str(error), "--for") from None
        self._place, self._until, self._output = place, until, output
        self._until_any, self._timeout = until_any, timeout
        self._refused_after = why.REFUSED_SECONDS if refused_after is None else refused_after
        self._began = time.monotonic()
        self._told: dict[str, str] = {}

    def run(self, names: list[str]) -> Exit:
        """Wait for these jobs, or for the newest one, and return the exit code.

        Raises JobTimeout, JobRefused, NotFound, another ClusterError or LoginFailed.
        """
        client = self._place.client()
        # The same job twice is one job.
        found = [find(client, name) for name in names] or [find(client, None)]
        jobs = {job.uid: job for job in found}
        left = dict(jobs)
        code = Exit.OK
        try:
            limits = {"timeout": self._timeout, "refused_after": self._refused_after}
            for job in client.changes(list(jobs.values()), left=left, **limits):
                if job.uid not in left:
                    continue
                left[job.uid] = job
                if not job.is_at(self._wanted):
                    self._tell(job)
                    continue
                self._print(job)
                del left[job.uid]
                code = Exit.JOB_FAILED if job.state == "Failed" else code
                if self._until_any or not left:
                    return code
        except KeyboardInterrupt:
            again = f"wait {' '.join(names)}{self._words()}"
            return detached(next(iter(left.values())), self._place, again)
        text = ", ".join(f"{job.name} is {job.state}" for job in left.values())
        job = next(iter(left.values()))
        raise JobTimeout(job, f"{text} after {duration(self._timeout or 0)}, not {self._until}")

    def _words(self) -> str:
        """Return the options that wait for the same, with a space before each."""
        until = "" if self._until == "finished" else f" --for {self._until}"
        return until + " --any" * self._until_any

    def _tell(self, job: Job) -> None:
        """Say how the job is if that has changed, but for its steps."""
        nodes = why.text(job.body, "status", "summary", "nodes", limit=33)
        told = f"{job.state} {nodes} {job.reason}"
        if self._told.get(job.uid) != told:
            self._told[job.uid] = told
            passed = duration(time.monotonic() - self._began)
            because = why.with_time(job.reason, job.body.get("status"), time.time())
            parts = [job.name, job.state, passed, f"{nodes} nodes" if nodes else "", because]
            note("  ".join(filter(None, parts)))

    def _print(self, job: Job) -> None:
        if self._output is Record.JSON:
            say(json.dumps(job.to_record()))
        else:
            say(f"{job.name} {job.state}")
