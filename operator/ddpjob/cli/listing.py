"""The jobs that `ddpjob get` selects: once, or for as long as somebody looks on."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from rich.console import Group
from rich.live import Live

from ddpjob.cli import objects
from ddpjob.cli.columns import line, show, styled, widths
from ddpjob.cli.options import Form, Output
from ddpjob.cli.rows import ORDERS, headings, row
from ddpjob.cli.say import document, note, say
from ddpjob.cli.screen import Screen
from ddpjob.client.client import Client, in_brief, is_selected, select
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.json_depth import Body

# Refreshes of the table in a second: ages and reasons go on while nothing else changes.
REFRESHES = 1


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
            return (body if is_whole else job.seen) if is_wanted else None

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
