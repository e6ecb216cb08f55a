"""`ddpjob get`: the jobs of a namespace, or of all of them, as a table or as objects."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from rich.console import Group
from rich.live import Live

from ddpjob import why
from ddpjob.cli.exits import detaching
from ddpjob.cli.options import Place, bad, complete_names, plain_name
from ddpjob.cli.output import Output, as_text, document, note, say, show_jobs
from ddpjob.cli.table import Screen, line, show, styled, widths
from ddpjob.client.client import Client, is_selected
from ddpjob.client.display import figures_of
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.times import duration

STATES = (
    *("Pending", "Queued", "Starting", "Running", "Restarting", "Idle", "Suspended"),
    *("Succeeded", "Failed"),
)
# Refreshes of the table in a second: ages and reasons go on while nothing else changes.
REFRESHES = 1
HEADINGS = ("NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE")
# Before the reason, which is cut at the end of a terminal's line.
WIDE = ("ATTEMPT", "POD", "NODE", "IMAGE", "USER")
NONE = "-"

Sort = Literal["age", "name", "state", "restarts", "step", "loss"]
ORDERS: dict[Sort, Callable[[Job], tuple[float | str, ...]]] = {
    "age": lambda job: (-(job.created or 0.0), job.namespace, job.name),
    "name": lambda job: (job.namespace, job.name),
    "state": lambda job: (job.state, job.namespace, job.name),
    "restarts": lambda job: (-int(figures_of(job)["restarts"]), job.namespace, job.name),
    "step": lambda job: (-(why.number(job.body, "status", "progress", "step") or 0), job.name),
    "loss": lambda job: (loss(job), job.name),
}


def _states(text: str | None) -> str | None:
    """Refuse a state that there is not, since nothing would ever be in it."""
    for word in text.split(",") if text else ():
        if word.strip().capitalize() not in STATES:
            raise bad(f"must be among {', '.join(STATES)}, got {word.strip()!r}")
    return text


def loss(job: Job) -> float:
    """Return the last loss, infinity without one or for NaN: those jobs come last."""
    try:
        found = float(why.text(job.body, "status", "summary", "loss"))
    except ValueError:
        return math.inf
    return math.inf if math.isnan(found) else found


@dataclass(frozen=True)
class Listing:
    """Which jobs are shown, in which order and in which format."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Jobs. By default all.", autocompletion=complete_names),
    ] = None
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False
    labels: Annotated[
        str, typer.Option("--selector", "-l", help="Label selector, such as team=vision.")
    ] = ""
    state: Annotated[
        str | None,
        typer.Option(callback=_states, help="States, with commas between: Failed,Restarting."),
    ] = None
    mine: Annotated[bool, typer.Option("--mine", help="Jobs that you have submitted.")] = False
    sort: Annotated[Sort, typer.Option(help=f"Order: {', '.join(ORDERS)}.")] = "age"
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            help="table, wide, name, or the objects as stored: json, yaml.",
        ),
    ] = "table"

    def print(self, client: Client) -> None:
        """Print the jobs. Raises NotFound if one that is named does not exist."""
        if self.names:
            jobs = [client.job(plain_name(name)) for name in self.names]
        else:
            jobs = client.jobs(
                state=self.state,
                mine=self.mine,
                labels=self.labels,
                all_namespaces=self.all_namespaces,
            )
        jobs = sorted(jobs, key=ORDERS[self.sort])
        if not self._is_table:
            show_jobs(jobs, self.output, single=len(self.names or ()) == 1)
        elif jobs:
            show(self.headings, [self.row(job, time.time()) for job in jobs], Screen())
        else:
            where = "any namespace" if self.all_namespaces else f"namespace {client.namespace}"
            note(f"no such jobs in {where}")

    def follow(self, client: Client) -> None:
        """Print the jobs and their changes, until Ctrl-C.

        A terminal shows one table that changes; elsewhere each change is a line or an object.
        """
        screen, sizes = Screen(), widths([self.headings])
        if self._is_table and screen.is_terminal:
            self._keep_table(client, screen)
            return
        if self._is_table:
            say(line(self.headings, sizes))
        for job, is_shown in self._changes(client):
            if is_shown and self._is_table:
                row = self.row(job, time.time())
                # As wide as the widest so far.
                sizes = [max(pair) for pair in zip(sizes, widths([row]), strict=True)]
                say(line(row, sizes))
            elif is_shown and self.output == "json":
                document(json.dumps(job.body))
            elif is_shown and self.output == "yaml":
                document("---\n" + as_text(job.body, "yaml"))
            elif is_shown:
                show_jobs([job], "name", single=True)

    @property
    def _is_table(self) -> bool:
        return self.output in ("table", "wide")

    def _changes(self, client: Client) -> Iterator[tuple[Job, bool]]:
        """Yield each job when it changes, and whether it is there and in a selected state."""
        names = [client.job(plain_name(name)).name for name in self.names or ()]
        connection, me = client.connection, client.user if self.mine else None
        namespace = None if self.all_namespaces else client.namespace
        for event in connection.watch(DDPJOBS, namespace=namespace, labels=self.labels):
            job = Job(connection, event.object)
            if is_selected(job, None, me) and (not names or job.name in names):
                yield job, event.type != "DELETED" and is_selected(job, self.state, me)

    def _keep_table(self, client: Client, screen: Screen) -> None:
        """Keep one table on the terminal."""
        jobs: dict[str, Job] = {}
        with Live(
            get_renderable=lambda: self._table(screen, list(jobs.values())),
            console=screen,
            refresh_per_second=REFRESHES,
        ) as live:
            for job, is_shown in self._changes(client):
                jobs.pop(job.uid, None)
                if is_shown:
                    jobs[job.uid] = job
                live.refresh()

    def _table(self, screen: Screen, jobs: list[Job]) -> Group:
        """Return the table, cut at the height of the terminal."""
        rows = [self.row(job, time.time()) for job in sorted(jobs, key=ORDERS[self.sort])]
        room = max(1, screen.height - 2)
        more = len(rows) - room
        text = styled(self.headings, rows[:room], screen.width)
        return Group(*text, *([f"… and {more} more"] if more > 0 else []))

    @property
    def headings(self) -> tuple[str, ...]:
        """Return the headings of the columns."""
        first, more = ["NAMESPACE"] * self.all_namespaces, WIDE if self.output == "wide" else ()
        return (*first, *HEADINGS, *more, "REASON")

    def row(self, job: Job, now: float) -> tuple[str, ...]:
        """Return the cells of a job, all of them printable."""
        age = NONE if job.created is None else duration(max(0.0, now - job.created))
        cells = [job.namespace] * self.all_namespaces
        cells += [job.name, job.state, *figures_of(job).values(), age]
        if self.output == "wide":
            summary = why.part(job.body, "status", "summary")
            cells += [why.text(summary, name) or NONE for name in ("attempt", "pod", "node")]
            cells += [why.text(job.body, "spec", "image") or NONE, job.user or NONE]
        return (*cells, why.with_time(job.reason, job.body.get("status"), now))


def get(
    listing: Listing,
    place: Place,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show changes.")] = False,
) -> None:
    """Show jobs: state, progress, and why one is not running.

    By default these are all jobs of the namespace, newest first. A reason comes with the time for
    which the job waits: Unschedulable 12m. The exit code is 3 if a job that is named does not
    exist.
    """
    if listing.names and (
        listing.all_namespaces or listing.labels or listing.state or listing.mine
    ):
        raise bad("NAMES stand alone: without -A, -l, --state and --mine")
    client = place.client()
    if not watch:
        listing.print(client)
        return
    with detaching("detached: the jobs run on"):
        listing.follow(client)
