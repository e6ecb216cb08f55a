"""`ddpjob logs`: what the ranks have printed, and go on printing."""

import shlex
import time
from typing import Annotated

import typer

from ddpjob.cli.options import Context, Format, Kubeconfig, Name, Namespace, Place
from ddpjob.cli.values import seconds

# The options that choose lines and show them so. They belong to the command that comes back.
CHOOSE = ("rank", "node", "everything", "container", "attempt", "grep")
SHOW = ("timestamps", "output", "max_streams")


def logs(
    called: typer.Context,
    name: Name = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, over restarts.")
    ] = False,
    rank: Annotated[
        str | None, typer.Option(help="Global ranks, such as 13 or 0,8-11. By default rank 0.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Pods by node rank, such as 1 or 0-3: all their lines.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All ranks.")] = False,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            "-c",
            help="Init container or sidecar. By default the trainer, or the init container that "
            "failed.",
        ),
    ] = None,
    attempt: Annotated[str, typer.Option(help="Number of an attempt, current or all.")] = "current",
    since: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Only lines of the last time: 10m."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only the last lines of each pod.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only lines in which this RE2 expression is found.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Begin each line with its time.")
    ] = False,
    output: Annotated[
        Format,
        typer.Option(
            "--output",
            "-o",
            help="text, json, or raw: as printed, escape sequences included.",
        ),
    ] = Format.TEXT,
    max_streams: Annotated[
        int, typer.Option(min=1, max=1024, help="The most pods that are read at once.")
    ] = 64,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print what the ranks have printed: rank 0, or the one that failed first.

    Of a job that has failed or restarts, these are the last 50 lines of the rank that failed first.
    A line begins with aN, the attempt, and rN, the rank. Lines of the pod's agent, or of torchrun,
    have nN, the node rank, instead; those of another container have its name too. With --follow the
    exit code is 0 if the job succeeds and 1 if it fails. Ctrl-C ends the command (130), and the job
    runs on.
    """
    from ddpjob.cli.logstream import Shown, choose, print_logs, search
    from ddpjob.client.selection import Query

    query = Query(
        follow=follow,
        tail=tail,
        since=None if since is None else time.time() - since,
        shows=search(grep),
        max_streams=max_streams,
        container=container,
    )
    wanted = choose(rank, node, attempt, everything=everything)
    shown = Shown(query, wanted, output, timestamps=timestamps, words=_words(called))
    raise typer.Exit(print_logs(Place(namespace, context, kubeconfig), name, shown))


def _words(called: typer.Context) -> str:
    """Return the options that choose lines and show them so, with a space before each."""
    found = ""
    for option in called.command.params:
        value = called.params.get(option.name or "")
        if option.name in CHOOSE + SHOW and value != option.default:
            text = option.opts[0] if value is True else f"{option.opts[0]}={value}"
            found += f" {shlex.quote(text)}"
    return found
