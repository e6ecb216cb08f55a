"""`ddpjob get`: the jobs of a namespace, or of all of them, as a table or as objects."""

from typing import Annotated

import typer

from ddpjob.cli.options import (
    Context,
    Kubeconfig,
    Namespace,
    Output,
    Place,
    complete_names,
    plain_name,
)
from ddpjob.text import printable

STATES = ("Pending", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
SORTS = ("age", "name", "state", "restarts", "step", "loss")


def _states(text: str | None) -> str | None:
    """Refuse a state that there is not, since nothing would ever be in it."""
    for word in (text or "").split(",") if text else ():
        if word.strip().lower() not in {state.lower() for state in STATES}:
            known = ", ".join(STATES)
            raise typer.BadParameter(printable(f"must be among {known}, got {word.strip()!r}"))
    return text


def _sort(text: str) -> str:
    if text not in SORTS:
        known = ", ".join(SORTS)
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
    sort: Annotated[str, typer.Option(callback=_sort, help=f"Order: {', '.join(SORTS)}.")] = "age",
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
    from ddpjob.cli.interrupt import detaching
    from ddpjob.cli.listing import Listing, Selection

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
