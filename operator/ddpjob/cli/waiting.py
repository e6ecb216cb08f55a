"""Waits for jobs, and says meanwhile how they are: the work of `ddpjob wait`."""

import json
import time

from ddpjob.cli.endings import detached
from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Place, Record, find
from ddpjob.cli.rows import reason
from ddpjob.cli.say import note, say
from ddpjob.cli.values import bad
from ddpjob.client import why
from ddpjob.client.job import Job, parse_until
from ddpjob.errors import JobTimeout
from ddpjob.times import duration


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
            because = reason(job, time.time())
            parts = [job.name, job.state, passed, f"{nodes} nodes" if nodes else "", because]
            note("  ".join(filter(None, parts)))

    def _print(self, job: Job) -> None:
        if self._output is Record.JSON:
            say(json.dumps(job.to_record()))
        else:
            say(f"{job.name} {job.state}")
