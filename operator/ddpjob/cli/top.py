"""`ddpjob top`: how far a job is, and each of its nodes."""

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ddpjob import names, why
from ddpjob.cli.exits import detaching
from ddpjob.cli.options import Name, Place, Recorded, find
from ddpjob.cli.output import as_text, document, note, say
from ddpjob.cli.table import COLOURS, Screen, show, styled
from ddpjob.client import agents
from ddpjob.client.agents import NodeProgress
from ddpjob.client.display import figures_of
from ddpjob.client.job import Job
from ddpjob.cluster.connection import Connection
from ddpjob.errors import Forbidden
from ddpjob.times import duration

HEADINGS = ("NODE", "POD", "ON", "STEP", "STEPS/S", "IDLE", "LOSS")
NONE = "-"
# Characters of the bar.
BAR = 20
# Seconds between the two looks of who looks once. A rate is the difference of two.
ONCE_SECONDS = 1.0


def top(
    place: Place,
    name: Name = None,
    interval: Annotated[
        float, typer.Option(min=0.5, max=86400, help="Seconds between two looks at the nodes.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table. Without a terminal it is the default.")
    ] = False,
    output: Recorded = "text",
) -> None:
    """Show the progress of a job and of each node, in a table that changes until the job ends.

    STEPS/S is what a node has done since the last look; --once and -o json look twice, a second
    apart. IDLE is the time since its last step. The agents in the pods are asked through
    port-forward; who may not do that sees the job's status alone. Ctrl-C ends the command, and the
    job runs on.
    """
    client = place.client()
    view = View(client.connection, find(client, name))
    screen = Screen()
    if output == "json":
        view.look_twice()
        document(as_text(view.record(), "json"))
    elif once or not screen.is_terminal:
        view.look_twice()
        say(*head(view.job, view.nodes))
        if view.nodes:
            show(HEADINGS, view.rows(), screen)
        if view.problem:
            note(view.problem)
    else:
        again = f"ddpjob top {view.job.name}{place.flags}"
        with detaching(f"detached: {view.job.name} runs on; come back with: {again}"):
            _live(view, screen, interval)


def _live(view: "View", screen: Screen, interval: float) -> None:
    """Keep the table on the terminal until the job ends."""
    view.look()
    with Live(
        get_renderable=lambda: view.table(screen), console=screen, auto_refresh=False
    ) as live:
        while not view.job.is_finished:
            live.refresh()
            time.sleep(interval)
            view.job.refresh()
            view.look()
        live.refresh()


class View:
    """One job, and its nodes as they were last seen."""

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection, self.job = connection, job
        self.nodes: list[NodeProgress] = []
        self.problem = ""
        self._rates: dict[str, float] = {}  # steps per second, by pod
        self._seen_at = 0.0

    def look_twice(self) -> None:
        """Look, and once more for the rates if a node makes steps."""
        self.look()
        if any(node.step is not None for node in self.nodes):
            time.sleep(ONCE_SECONDS)
            self.job.refresh()
            self.look()

    def look(self) -> None:
        """Ask the agents, unless the job has no pods or its user may not."""
        before, self.nodes, self._rates = self.nodes, [], {}
        if (
            self.job.is_finished
            or self.job.state in (*why.BEFORE_PODS, "Suspended")
            or self.problem
        ):
            return
        try:
            answers = agents.ask(self._connection, self.job.body, "/progress")
        except Forbidden as error:
            right = f"{error.verb} {error.resource} in namespace {error.namespace}"
            self.problem = f"you may not {right}, so this is the job's status alone"
            return
        now = time.monotonic()
        self.nodes = [agents.read_progress(answer) for answer in answers]
        self._rates = rates(before, self.nodes, now - self._seen_at)
        self._seen_at = now

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of each node."""
        return [row(node, self._rates.get(node.pod.uid)) for node in self.nodes]

    def table(self, screen: Screen) -> Group:
        """Return all, cut at the height of the terminal."""
        lines = [Text(line) for line in head(self.job, self.nodes)]
        lines[0].highlight_words([self.job.state], COLOURS.get(self.job.state, ""))
        rows = self.rows()
        room = max(1, screen.height - len(lines) - 3)
        if rows:
            lines += styled(HEADINGS, rows[:room], screen.width)
        if len(rows) > room:
            lines.append(Text(f"… and {len(rows) - room} more"))
        if self.problem:
            lines.append(Text(self.problem, style="yellow"))
        for line in lines:
            line.truncate(screen.width, overflow="ellipsis")
        return Group(*lines)

    def record(self) -> dict[str, Any]:
        """Return all that is known, as JSON has it."""
        job = self.job
        useful = why.useful(job.body.get("status"), time.time())
        nodes = [
            {
                "nodeRank": node.pod.node_rank,
                "pod": node.pod.name,
                "node": node.pod.node,
                "state": node.state or None,
                "step": node.step,
                "stepsPerSecond": self._rates.get(node.pod.uid),
                "loss": node.loss,
                "samplesPerSecond": node.samples_per_second,
                "idleSeconds": node.idle_seconds,
                "problem": node.problem or None,
            }
            for node in self.nodes
        ]
        return {
            "job": job.name,
            "namespace": job.namespace,
            "state": job.state,
            "attempt": job.attempt,
            "step": job.step,
            "curve": [list(point) for point in job.curve()],
            "goodput": None if useful is None else f"{useful:.3f}",
            "problem": self.problem or None,
            "nodes": nodes,
        }


def rates(
    before: Sequence[NodeProgress], now: Sequence[NodeProgress], seconds: float
) -> dict[str, float]:
    """Return the steps per second between two looks, by the uid of the pod.

    A pod that has begun again at a lower step has none, nor has one that one of the looks lacks.
    """
    last = {node.pod.uid: node.step for node in before}
    steps = ((node.pod.uid, node.step, last.get(node.pod.uid)) for node in now)
    return {
        uid: (step - was) / max(0.001, seconds)
        for uid, step, was in steps
        if step is not None and was is not None and step >= was
    }


def head(job: Job, nodes: Sequence[NodeProgress]) -> list[str]:
    """Return the lines above the table: state, steps, useful time, and the loss."""
    told = figures_of(job)
    useful = why.useful(job.body.get("status"), time.time())
    first = [
        f"{job.name}  {job.state} {told['nodes']}".removesuffix(f" {NONE}"),
        "" if told["step"] == NONE else bar(told["step"]),
        "" if told["eta"] == NONE else f"eta {told['eta']}",
        "" if useful is None else f"useful {useful:.0%}",
    ]
    samples = next((n.samples_per_second for n in nodes if n.samples_per_second), None)
    last = [
        "" if told["loss"] == NONE else f"loss {told['loss']}",
        f"{samples:.4g} samples/s" if samples else "",
    ]
    lines = ["  ".join(filter(None, first)), job.reason, "  ".join(filter(None, last))]
    return list(filter(None, lines))


def bar(step: str) -> str:
    """Return the steps as a bar, if the total is known: `[#####.....] 50/100 50%`."""
    found = re.fullmatch(r"([0-9]{1,16})/([1-9][0-9]{0,15})", step)
    if not found:
        return f"step {step}"
    part = min(1.0, int(found[1]) / int(found[2]))
    return f"[{'#' * int(part * BAR):.<{BAR}}] {step} {int(part * 100)}%"


def row(node: NodeProgress, rate: float | None) -> tuple[str, ...]:
    """Return the cells of a node, all of them printable."""
    where = names.rank_text(node.pod.node_rank), node.pod.name, node.pod.node or NONE
    if node.problem:
        return (*where, node.problem, "", "", "")
    return (
        *where,
        NONE if node.step is None else str(node.step),
        NONE if rate is None else f"{rate:.3g}",
        NONE if node.idle_seconds is None else duration(node.idle_seconds),
        NONE if node.loss is None else f"{node.loss:.4g}",
    )
