"""Looks on while a new job starts and trains, until it ends or Ctrl-C detaches."""

import time
from typing import TYPE_CHECKING

from ddpjob.cli.detach import detaching
from ddpjob.cli.options import Place
from ddpjob.cli.say import note, say
from ddpjob.client import why
from ddpjob.errors import JobTimeout

if TYPE_CHECKING:
    from ddpjob.client.job import Job

# Seconds without any status after which it is said that no operator has taken the job.
TAKEN_SECONDS = 10.0


class Onlooker:
    """Shows one job."""

    def __init__(self, job: "Job", place: Place) -> None:
        self._job, self._place = job, place
        self._began = time.monotonic()
        self._shown: tuple[str, str] | None = None

    def look_on(self) -> None:
        """Show the job until it is finished. Raises JobFailed if it fails."""
        with detaching(*self._ways_back()):
            self._until_taken()
            job = self._until_running()
            if job.state == "Suspended":
                note(f"it starts with: ddpjob resume {job.name}{self._place.flags}")
                return
            if not job.is_finished:
                for line in job.logs(rank=0, follow=True):
                    say(f"a{line.attempt} r{line.rank} | {line.text}")
                job = job.wait(check=False)
                self._show(job)
            job.raise_if_failed()

    def _until_taken(self) -> None:
        """Wait for the operator, and say so if it does not come."""
        try:
            self._job.until(lambda job: bool(job.body.get("status")), timeout=TAKEN_SECONDS)
        except JobTimeout:
            self._step("pending", "no operator has taken the job yet: see ddpjob doctor")

    def _until_running(self) -> "Job":
        """Show each state of the job until it runs, or will not run."""

        def is_there(job: "Job") -> bool:
            if job.state != "Pending" or job.body.get("status"):
                self._show(job)
            return job.is_finished or job.state in ("Running", "Suspended")

        return self._job.until(is_there)

    def _show(self, job: "Job") -> None:
        """Print the job's state, once for each change."""
        words = job.reason
        if job.state == "Running":
            words = f"attempt {job.attempt}"
        elif nodes := why.text(job.body, "status", "summary", "nodes"):
            words = f"{nodes} nodes" + (f": {words}" if words else "")
        if self._shown != (job.state, words):
            self._shown = job.state, words
            self._step(job.state.lower(), words)

    def _step(self, label: str, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        note(f"{label:<9} {seconds // 60}:{seconds % 60:02}  {text}".rstrip())

    def _ways_back(self) -> list[str]:
        name, flags = self._job.name, self._place.flags
        ways = [
            (f"ddpjob logs -f {name}{flags}", "follow again"),
            (f"ddpjob suspend {name}{flags}", "stop, keep the job"),
            (f"ddpjob delete {name}{flags}", "stop and remove"),
        ]
        width = max(len(command) for command, _ in ways)
        return [
            "detached: the job runs on.",
            *(f"  {command:<{width}}  {what}" for command, what in ways),
        ]
