"""`ddpjob plot`: a training's loss by step, in the terminal or as SVG."""

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ddpjob import plot as plots
from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, find
from ddpjob.cli.say import can_print, say

# What the plots call a metric.
LABELS: dict[plots.Metric, str] = {"loss": "loss", "samplesPerSecond": "samples/s"}
ROWS = 18


def plot(
    name: Name = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="history.jsonl of a training, which ddptrain writes into its --log-dir. "
            "- is standard input."
        ),
    ] = None,
    svg: Annotated[
        str | None, typer.Option(help="File that gets an SVG instead. - is standard output.")
    ] = None,
    metric: Annotated[plots.Metric, typer.Option(help="What is plotted.")] = "loss",
    log: Annotated[bool, typer.Option("--log", help="With a logarithmic axis.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Plot a training's loss by step, with its restarts.

    The points are those of the job's status, 64 at most, or all of a history.jsonl. The exit code
    is 2 if there is nothing to plot.
    """
    if name is not None and file is not None:
        _refuse("give the NAME of a job or --file, not both")
    if file is not None:
        title, curve, is_over = file, _of_file(file, metric), False
    else:
        job = find(Place(namespace, context, kubeconfig).client(), name)
        title, is_over = job.name, job.is_finished
        curve = plots.points_of(job.body.get("status") or {}, metric)
    if not curve.points:
        what = f"{title}: has no {LABELS[metric]}" + " yet" * (not is_over)
        _refuse(f"{what}; docs/progress.md has how to report it")
    label = LABELS[metric]
    if svg is not None:
        drawn = plots.svg(curve.points, curve.restarts, title, label=label, is_log=log)
        _write(svg, drawn)
        return
    width = shutil.get_terminal_size().columns
    drawn = plots.text(curve.points, curve.restarts, width, ROWS, label=label, is_log=log)
    say(*(drawn if can_print(drawn) else drawn.translate(plots.ASCII)).splitlines())


def _of_file(path: str, metric: plots.Metric) -> plots.Curve:
    try:
        curve, unread = plots.read_history(_lines(path), metric)
    except OSError as error:
        _refuse(f"{path}: cannot be read: {error.strerror}")
    if unread:
        say(f"{path}: lines left out that are no JSON object with a step: {unread}", err=True)
    return curve


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of the file."""
    if path == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        yield from sys.stdin
        return
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        yield from file


def _write(path: str, drawn: str) -> None:
    if path == "-":
        say(drawn.rstrip("\n"))
        return
    try:
        Path(path).write_text(drawn, encoding="utf-8")
    except OSError as error:
        _refuse(f"--svg: {path} cannot be written: {error.strerror}")


def _refuse(problem: str) -> NoReturn:
    say(problem, err=True)
    raise typer.Exit(Exit.USAGE)
