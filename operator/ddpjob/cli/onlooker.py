"""Looks on while a new job starts and trains, until it ends or Ctrl-C detaches."""

import time
from dataclasses import replace

from ddpjob.cli.endings import detached
from ddpjob.cli.exits import Exit
from ddpjob.cli.logs import Shown, print_logs
from ddpjob.cli.options import Place
from ddpjob.cli.say import note
from ddpjob.client import why
from ddpjob.client.client import Client
from ddpjob.client.job import Job
from ddpjob.client.selection import Query
from ddpjob.errors import JobTimeout

# Seconds without any status after which it is said that no operator has taken the job.
TAKEN_SECONDS = 10.0


class Onlooker:
    """Shows one job that has just been created."""

    def __init__(self, client: Client, job: Job, place: Place) -> None:
        elsewhere = job.namespace != client.namespace  # as a job file may have it
        self._place = replace(place, namespace=job.namespace) if elsewhere else place
        self._job = job
        self._began = time.monotonic()
        self._shown: tuple[str, str] | None = None

    def look_on(self) -> Exit:
        """Show the job until it is finished, and return the exit code that stands for its end.

        Raises JobRefused once its pods have been refused for some seconds.
        """
        name = self._job.name
        try:
            self._until_taken()
            job = self._job.until(self._is_settled, refused_after=why.REFUSED_SECONDS)
            if _stays_suspended(job):
                note(f"it starts with: ddpjob resume {name}{self._place.flags}")
                return Exit.OK
            # Of a job that has finished meanwhile: all lines, or those of its first failure.
            return print_logs(self._place, name, Shown(Query(follow=True)))
        except KeyboardInterrupt:
            return detached(self._job, self._place, f"logs -f {name}")

    def _until_taken(self) -> None:
        """Wait for the operator, and say so if it does not come."""
        try:
            self._job.until(lambda job: bool(job.body.get("status")), timeout=TAKEN_SECONDS)
        except JobTimeout:
            self._step("pending", "no operator has taken the job yet: see ddpjob doctor")

    def _is_settled(self, job: Job) -> bool:
        """Show the job's state, once for each change, and return whether it runs or never will."""
        words = job.reason
        if job.state == "Running":
            words = f"attempt {job.attempt}"
        elif nodes := why.text(job.body, "status", "summary", "nodes"):
            words = f"{nodes} nodes" + (f": {words}" if words else "")
        if job.state == "Suspended" and not _stays_suspended(job):
            return False
        if job.body.get("status") and self._shown != (job.state, words):
            self._shown = job.state, words
            self._step(job.state.lower(), words)
        return job.is_finished or job.state in ("Running", "Suspended")

    def _step(self, label: str, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        note(f"{label:<9} {seconds // 60}:{seconds % 60:02}  {text}".rstrip())


def _stays_suspended(job: Job) -> bool:
    """Return whether a suspended job waits for its user.

    Until its code is there, a new job is suspended, and its status may still say so afterwards.
    """
    return job.state == "Suspended" and bool(job.body["spec"].get("suspend"))
