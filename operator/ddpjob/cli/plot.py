"""`ddpjob plot`: a training's loss by step, in the terminal or as SVG."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from ddpjob import plot as plots
from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Name, Place, bad, find
from ddpjob.cli.output import say


def plot(
    place: Place,
    name: Name = None,
    file: Annotated[
        typer.FileText | None,
        typer.Option(
            encoding="utf-8",
            errors="replace",
            help="history.jsonl of a training, which ddptrain writes into its --log-dir. "
            "- is standard input.",
        ),
    ] = None,
    svg: Annotated[
        str | None, typer.Option(help="File that gets an SVG instead. - is standard output.")
    ] = None,
    metric: Annotated[plots.Metric, typer.Option(help="What is plotted.")] = "loss",
    log: Annotated[bool, typer.Option("--log", help="With a logarithmic axis.")] = False,
) -> None:
    """Plot a training's loss by step, with its restarts.

    The points are those of the job's status, 64 at most, or all of a history.jsonl. The exit code
    is 2 if there is nothing to plot.
    """
    if name is not None and file is not None:
        raise bad("give the NAME of a job or --file, not both")
    if file is not None:
        title, is_over = file.name, False
        curve, unread = plots.read_history(file, metric)
        if unread:
            say(f"{title}: lines left out that are no JSON object with a step: {unread}", err=True)
    else:
        job = find(place.client(), name)
        title, is_over = job.name, job.is_finished
        curve = plots.points_of(job.body.get("status") or {}, metric)
    if not curve.points:
        what = f"{title}: has no {curve.label}" + " yet" * (not is_over)
        say(f"{what}; docs/progress.md has how to report it", err=True)
        raise typer.Exit(Exit.USAGE)
    if svg is None:
        say(*plots.text(curve, shutil.get_terminal_size().columns, is_log=log))
        return
    drawn = plots.svg(curve, title, is_log=log)
    if svg == "-":
        say(drawn.rstrip("\n"))
        return
    try:
        Path(svg).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise bad(f"{svg} cannot be written: {error.strerror}", "--svg") from None
