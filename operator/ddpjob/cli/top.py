"""`ddpjob top`: how far a job is, and each of its nodes."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ddpjob.cli.exits import detaching
from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, find
from ddpjob.cli.output import Record, document, note, say
from ddpjob.cli.table import COLOURS, Screen, show, styled
from ddpjob.client import agents, why
from ddpjob.client.agents import NodeProgress
from ddpjob.client.job import Job
from ddpjob.errors import Forbidden
from ddpjob.times import duration

HEADINGS = ("NODE", "POD", "ON", "STEP", "STEPS/S", "IDLE", "LOSS")
NONE = "-"
# Characters of the bar, and of the curve.
BAR, CURVE = 20, 32
# Seconds between the two looks of who looks once. A rate is the difference of two.
ONCE_SECONDS = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"


def top(
    name: Name = None,
    interval: Annotated[
        float, typer.Option(min=0.5, max=86400, help="Seconds between two looks at the nodes.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table. Without a terminal it is the default.")
    ] = False,
    namespace: Namespace = None,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the progress of a job and of each node, in a table that changes until the job ends.

    STEPS/S is what a node has done since the last look; --once and -o json look twice, a second
    apart. IDLE is the time since its last step. The agents in the pods are asked through
    port-forward; who may not do that sees the job's status alone. Ctrl-C ends the command, and the
    job runs on.
    """
    view = View(Place(namespace, context, kubeconfig), name)
    if output is Record.JSON:
        view.print_record()
    else:
        view.show(interval, once=once)


class View:
    """One job, and its nodes as they were last seen."""

    def __init__(self, place: Place, name: str | None) -> None:
        self._place, self._client = place, place.client()
        self._job = find(self._client, name)
        self._nodes: list[NodeProgress] = []
        self._rates: dict[str, float] = {}  # steps per second, by pod
        self._seen_at = 0.0
        self._problem = ""

    def print_record(self) -> None:
        """Print all that is known, once, as JSON."""
        self._look_twice()
        found = _record(self._job, self._nodes, self._rates, self._problem)
        document(json.dumps(found, indent=2))

    def show(self, interval: float, *, once: bool) -> None:
        """Print the table once, or keep it on the terminal until the job ends or Ctrl-C."""
        screen = Screen()
        if once or not screen.is_terminal:
            self._look_twice()
            say(*head(self._job, self._nodes))
            if self._nodes:
                show(HEADINGS, self._rows(), screen)
            if self._problem:
                note(self._problem)
            return
        self._look()
        again = f"ddpjob top {self._job.name}{self._place.flags}"
        with detaching(f"detached: {self._job.name} runs on; come back with: {again}"):
            self._live(screen, interval)

    def _live(self, screen: Screen, interval: float) -> None:
        with Live(
            get_renderable=lambda: self._table(screen), console=screen, auto_refresh=False
        ) as live:
            while True:
                live.refresh()
                if self._job.is_finished:
                    return
                time.sleep(interval)
                self._job.refresh()
                self._look()

    def _look_twice(self) -> None:
        """Look, and once more for the rates if a node makes steps."""
        self._look()
        if any(node.step is not None for node in self._nodes):
            time.sleep(ONCE_SECONDS)
            self._job.refresh()
            self._look()

    def _look(self) -> None:
        """Ask the agents, unless the job has no pods or its user may not."""
        if self._job.is_finished or self._job.state in ("Pending", "Suspended") or self._problem:
            self._nodes, self._rates = [], {}
            return
        try:
            answers = agents.ask(self._client.connection, self._job.body, "/progress")
        except Forbidden as error:
            self._nodes = []
            self._problem = (
                f"you may not {error.verb} {error.resource} in namespace {error.namespace}, "
                "so this is the job's status alone"
            )
            return
        now, before = time.monotonic(), self._nodes
        self._nodes = [agents.read_progress(answer) for answer in answers]
        self._rates = rates(before, self._nodes, now - self._seen_at)
        self._seen_at = now

    def _rows(self) -> list[tuple[str, ...]]:
        return [row(node, self._rates.get(node.pod.uid)) for node in self._nodes]

    def _table(self, screen: Screen) -> Group:
        """Return all, cut at the height of the terminal."""
        lines = [Text(line) for line in head(self._job, self._nodes)]
        lines[0].highlight_words([self._job.state], COLOURS.get(self._job.state, ""))
        rows = self._rows()
        room = max(1, screen.height - len(lines) - 3)
        if rows:
            lines += styled(HEADINGS, rows[:room], screen.width)
        if len(rows) > room:
            lines.append(Text(f"… and {len(rows) - room} more"))
        if self._problem:
            lines.append(Text(self._problem, style="yellow"))
        for line in lines:
            line.truncate(screen.width, overflow="ellipsis")
        return Group(*lines)


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
    """Return the lines above the table: state, steps, useful time, and the loss as a curve."""
    status = job.body.get("status")
    summary = {
        name: why.text(status, "summary", name, limit=64) for name in ("nodes", "step", "eta")
    }
    parts = [f"{job.name}  {job.state} {summary['nodes']}".rstrip()]
    if summary["step"]:
        parts.append(bar(summary["step"]))
    if summary["eta"] and summary["eta"] != NONE:
        parts.append(f"eta {summary['eta']}")
    if (useful := why.useful(status, time.time())) is not None:
        parts.append(f"useful {useful:.0%}")
    lines = ["  ".join(parts)]
    if job.reason:
        lines.append(job.reason)
    losses = [point[1] for point in job.curve() if len(point) > 1]
    samples = next((n.samples_per_second for n in nodes if n.samples_per_second), None)
    figures = [why.text(status, "summary", "loss", limit=64), curve(losses)]
    if figures[0]:
        figures[0] = f"loss {figures[0]}"
    figures.append(f"{samples:.4g} samples/s" if samples else "")
    if any(figures):
        lines.append("  ".join(filter(None, figures)))
    return lines


def bar(step: str) -> str:
    """Return the steps as a bar, if the total is known: `[#####.....] 50/100 50%`."""
    done, slash, total = step.partition("/")
    if not (
        slash and done.isdecimal() and total.isdecimal() and 0 < len(total) < 17 and int(total)
    ):
        return f"step {step}"
    part = min(1.0, int(done[:17]) / int(total))
    full = int(part * BAR)
    return f"[{'#' * full}{'.' * (BAR - full)}] {step} {int(part * 100)}%"


def curve(losses: Sequence[float]) -> str:
    """Return the losses as a line of blocks, the highest as the largest."""
    finite = [loss for loss in losses if abs(loss) < 1e300][-CURVE:]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span, top = (high - low) or 1.0, len(BLOCKS) - 1
    return "".join(BLOCKS[round((loss - low) / span * top)] for loss in finite)


def row(node: NodeProgress, rate: float | None) -> tuple[str, ...]:
    """Return the cells of a node, all of them printable."""
    pod = node.pod
    if node.problem:
        return (str(pod.node_rank), pod.name, pod.node or NONE, node.problem, "", "", "")
    return (
        str(pod.node_rank),
        pod.name,
        pod.node or NONE,
        NONE if node.step is None else str(node.step),
        NONE if rate is None else f"{rate:.3g}",
        NONE if node.idle_seconds is None else duration(node.idle_seconds),
        NONE if node.loss is None else f"{node.loss:.4g}",
    )


def _record(
    job: Job, nodes: Sequence[NodeProgress], rates: Mapping[str, float], problem: str
) -> dict[str, Any]:
    useful = why.useful(job.body.get("status"), time.time())
    return {
        "job": job.name,
        "namespace": job.namespace,
        "state": job.state,
        "attempt": job.attempt,
        "step": job.step,
        "curve": [list(point) for point in job.curve()],
        "goodput": None if useful is None else f"{useful:.3f}",
        "problem": problem or None,
        "nodes": [
            {
                "nodeRank": node.pod.node_rank,
                "pod": node.pod.name,
                "node": node.pod.node,
                "state": node.state or None,
                "step": node.step,
                "stepsPerSecond": rates.get(node.pod.uid),
                "loss": node.loss,
                "samplesPerSecond": node.samples_per_second,
                "idleSeconds": node.idle_seconds,
                "problem": node.problem or None,
            }
            for node in nodes
        ],
    }
