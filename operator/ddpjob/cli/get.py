"""`ddpjob get`: the jobs of a namespace, or of all of them, as a table or as objects."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from ddpjob.cli import objects
from ddpjob.cli.columns import line, show, styled, widths
from ddpjob.cli.endings import detaching
from ddpjob.cli.options import (
    Context,
    Form,
    Kubeconfig,
    Namespace,
    Output,
    Place,
    complete_names,
    plain_name,
)
from ddpjob.cli.say import document, note, say
from ddpjob.cli.screen import Screen
from ddpjob.client import why
from ddpjob.client.client import Client, in_brief, is_selected, select
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.json_depth import Body
from ddpjob.text import printable
from ddpjob.times import duration

STATES = ("Pending", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
# Refreshes of the table in a second: ages and reasons go on while nothing else changes.
REFRESHES = 1
HEADINGS = ("NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE")
# Before the reason, which is cut at the end of a terminal's line.
WIDE = ("ATTEMPT", "POD", "NODE", "IMAGE", "USER")
NONE = "-"
# Characters of a cell, but for the last ones.
MAX_CELL = 64

# By which `--sort` puts jobs into order.
ORDERS: dict[str, Callable[[Job], tuple[float | str, ...]]] = {
    "age": lambda job: (-(job.created or 0.0), job.namespace, job.name),
    "name": lambda job: (job.namespace, job.name),
    "state": lambda job: (job.state, job.namespace, job.name),
    "restarts": lambda job: (-restarts(job), job.namespace, job.name),
    "step": lambda job: (-(why.number(job.body, "status", "progress", "step") or 0), job.name),
    "loss": lambda job: (loss(job), job.name),
}


def _states(text: str | None) -> str | None:
    """Refuse a state that there is not, since nothing would ever be in it."""
    for word in (text or "").split(",") if text else ():
        if word.strip().lower() not in {state.lower() for state in STATES}:
            known = ", ".join(STATES)
            raise typer.BadParameter(printable(f"must be among {known}, got {word.strip()!r}"))
    return text


def _sort(text: str) -> str:
    if text not in ORDERS:
        known = ", ".join(ORDERS)
        raise typer.BadParameter(printable(f"must be one of {known}, got {text!r}"))
    return text


def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Jobs. By default all.", autocompletion=complete_names),
    ] = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    labels: Annotated[
        str, typer.Option("--selector", "-l", help="Label selector, such as team=vision.")
    ] = "",
    state: Annotated[
        str | None,
        typer.Option(callback=_states, help="States, with commas between: Failed,Restarting."),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Jobs that you have submitted.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show changes.")] = False,
    sort: Annotated[str, typer.Option(callback=_sort, help=f"Order: {', '.join(ORDERS)}.")] = "age",
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            help="table, wide, name, or the objects as stored: json, yaml.",
        ),
    ] = Output.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show jobs: state, progress, and why one is not running.

    By default these are all jobs of the namespace, newest first. A reason comes with the time for
    which the job waits: Unschedulable 12m. The exit code is 3 if a job that is named does not
    exist.
    """
    if names and (all_namespaces or labels or state or mine):
        raise typer.BadParameter("NAMES stand alone: without -A, -l, --state and --mine")
    selection = Selection(
        names=tuple(map(plain_name, names or ())),
        all_namespaces=all_namespaces,
        labels=labels,
        state=state,
        mine=mine,
    )
    place = Place(namespace, context, kubeconfig)
    listing = Listing(place.client(), selection, sort, output)
    if not watch:
        listing.print()
        return
    again = f"ddpjob get -w{selection.flags(sort, output)}{place.flags}"
    with detaching(f"detached: the jobs run on; come back with: {again}"):
        listing.follow()


@dataclass(frozen=True)
class Selection:
    """Which jobs to show."""

    names: tuple[str, ...] = ()
    all_namespaces: bool = False
    labels: str = ""
    state: str | None = None
    mine: bool = False

    def flags(self, sort: str, output: Output) -> str:
        """Return names and options that show the same again, with a space before each."""
        words = [*self.names, *["-A"] * self.all_namespaces, *["--mine"] * self.mine]
        words += ["-l", self.labels] if self.labels else []
        words += ["--state", self.state] if self.state else []
        words += ["--sort", sort] if sort != "age" else []
        words += ["-o", output.value] if output is not Output.TABLE else []
        return "".join(f" {quote(word)}" for word in words)


class Listing:
    """Jobs in one order and one format."""

    def __init__(self, client: Client, selection: Selection, sort: str, output: Output) -> None:
        self._client, self._selection, self._output = client, selection, output
        self._order = ORDERS[sort]
        self._columns = {"wide": output is Output.WIDE, "namespaces": selection.all_namespaces}

    def print(self) -> None:
        """Print the jobs. Raises NotFound if one that is named does not exist."""
        jobs = self._jobs()
        if self._output not in (Output.TABLE, Output.WIDE):
            objects.show(jobs, Form(self._output), single=len(self._selection.names) == 1)
        elif jobs:
            show(headings(**self._columns), self._rows(jobs), Screen())
        else:
            note(f"no such jobs in {self._where()}")

    def follow(self) -> None:
        """Print the jobs and their changes, until Ctrl-C.

        A terminal shows one table that changes; elsewhere each change is a line or an object.
        """
        screen = Screen()
        if self._output not in (Output.TABLE, Output.WIDE):
            for _, job in self._changes():
                self._object(job)
        elif screen.is_terminal:
            self._live(screen)
        else:
            self._lines()

    def _jobs(self) -> list[Job]:
        wanted = self._selection
        if wanted.names:
            found = [self._job(self._client.job(name).body) for name in wanted.names]
        else:
            found = select(
                self._client,
                self._job,
                state=wanted.state,
                mine=wanted.mine,
                labels=wanted.labels,
                all_namespaces=wanted.all_namespaces,
            )
        return sorted(found, key=self._order)

    def _job(self, body: Body) -> Job:
        """Return a job; only who prints whole objects has room for all of it."""
        if self._output in (Output.JSON, Output.YAML):
            return Job(self._client.connection, body)  # all are printed at once in the end
        return in_brief(self._client, body)

    def _changes(self) -> Iterator[tuple[str, Job]]:
        """Yield what happens, and the job, whose state alone may not be a selected one."""
        wanted, client = self._selection, self._client
        me = client.user if wanted.mine else None
        is_whole = self._output in (Output.JSON, Output.YAML)
        for name in wanted.names:
            client.job(name)  # raises NotFound

        def keep(body: Body) -> Body | None:
            job = in_brief(client, body)
            named = not wanted.names or job.name in wanted.names
            is_wanted = named and is_selected(job, None, me)
            return (body if is_whole else job.body) if is_wanted else None

        namespace = None if wanted.all_namespaces else client.namespace
        watch = client.connection.watch(
            DDPJOBS, namespace=namespace, labels=wanted.labels, keep=keep
        )
        for event in watch:
            yield event.type, Job(client.connection, event.object)

    def _object(self, job: Job) -> None:
        if not is_selected(job, self._selection.state, None):
            return
        if self._output is Output.JSON:
            document(json.dumps(job.body))
        elif self._output is Output.YAML:
            document("---\n" + objects.as_text(job.body, Form.YAML))
        else:
            objects.show([job], Form.NAME, single=True)

    def _lines(self) -> None:
        """Print a row for each change, as wide as the widest so far."""
        heading = headings(**self._columns)
        age, sizes = heading.index("AGE"), widths([heading])
        shown: dict[str, tuple[str, ...]] = {}
        for kind, job in self._changes():
            if kind == "DELETED" or not is_selected(job, self._selection.state, None):
                shown.pop(job.uid, None)
                continue
            [cells] = self._rows([job])
            sizes = [max(pair) for pair in zip(sizes, widths([cells]), strict=True)]
            if heading:
                say(line(heading, sizes))
                heading = ()
            news = cells[:age] + cells[age + 1 :]
            if shown.get(job.uid) != news:
                say(line(cells, sizes))
            shown[job.uid] = news

    def _live(self, screen: Screen) -> None:
        """Keep one table on the terminal."""
        jobs: dict[str, Job] = {}
        with Live(
            get_renderable=lambda: self._table(screen, list(jobs.values())),
            console=screen,
            refresh_per_second=REFRESHES,
        ) as live:
            for kind, job in self._changes():
                jobs.pop(job.uid, None)
                if kind != "DELETED" and is_selected(job, self._selection.state, None):
                    jobs[job.uid] = job
                live.refresh()

    def _table(self, screen: Screen, jobs: list[Job]) -> Group:
        """Return the table, cut at the height of the terminal."""
        rows = self._rows(sorted(jobs, key=self._order))
        room = max(1, screen.height - 2)
        more = len(rows) - room
        text = styled(headings(**self._columns), rows[:room], screen.width)
        return Group(*text, *([f"… and {more} more"] if more > 0 else []))

    def _rows(self, jobs: list[Job]) -> list[tuple[str, ...]]:
        now = time.time()
        return [row(job, now, **self._columns) for job in jobs]

    def _where(self) -> str:
        if self._selection.all_namespaces:
            return "any namespace"
        return f"namespace {self._client.namespace}"


def loss(job: Job) -> float:
    """Return the last loss, infinity without one: those jobs come last."""
    text = why.text(job.body, "status", "summary", "loss", limit=32)
    return float(text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", text) else math.inf


def headings(*, wide: bool = False, namespaces: bool = False) -> tuple[str, ...]:
    """Return the headings of the columns."""
    first, more = ["NAMESPACE"] if namespaces else [], WIDE if wide else ()
    return (*first, *HEADINGS, *more, "REASON")


def row(job: Job, now: float, *, wide: bool = False, namespaces: bool = False) -> tuple[str, ...]:
    """Return the cells of a job, all of them printable."""
    age = NONE if job.created is None else duration(max(0.0, now - job.created))
    cells = [
        *([job.namespace] if namespaces else []),
        job.name,
        job.state,
        *(_summary(job, name) for name in ("nodes", "step", "loss", "eta")),
        str(restarts(job)),
        age,
    ]
    if wide:
        image = why.text(job.body, "spec", "image") or NONE
        cells += [_attempt(job), *_place(job), image, job.user or NONE]
    return (*cells, why.with_time(job.reason, job.body.get("status"), now))


def restarts(job: Job) -> int:
    """Return the number of the job's restarts."""
    return why.number(job.body, "status", "restarts") or 0


def _summary(job: Job, name: str) -> str:
    return why.text(job.body, "status", "summary", name, limit=MAX_CELL) or NONE


def _attempt(job: Job) -> str:
    told = why.text(job.body, "status", "summary", "attempt", limit=MAX_CELL)
    return told or f"{job.attempt}.{why.number(job.body, 'status', 'round') or 0}"


def _place(job: Job) -> list[str]:
    """Return pod and node: of an older operator's job, those of the primary failure."""
    places = []
    for name in ("pod", "node"):
        told = why.text(job.body, "status", "summary", name, limit=253)
        failed = "" if job.state == "Running" else why.text(job.body, "status", "failure", name)
        places.append(told or failed or NONE)
    return places
