"""`ddpjob rerun`: a new job like another one."""

from typing import Annotated

import typer

from ddpjob.cli import job_options
from ddpjob.cli.exits import detaching
from ddpjob.cli.options import Exclusions, Place, Printed, Settings, Target, plain_name
from ddpjob.cli.output import show_new, tell
from ddpjob.client import edits


def rerun(
    ctx: typer.Context,
    name: Target,
    place: Place,
    new_name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the new job. By default NAME-2, or the next number."),
    ] = None,
    exclude_node: Exclusions = None,
    set_: Settings = None,
    dry_run: job_options.Rehearsal = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all its nodes run.")] = False,
    output: Printed = None,
) -> None:
    """Create a new job with the spec and the code of this one, which stays as it is.

    A finished job never starts again; this is how its work is done once more. With a checkpoint the
    new job goes on from what the old one has saved. Words after -- replace the arguments of the
    script, which stays, as does -m MODULE:

    ddpjob rerun llama --dry-run -- --lr 1e-4
    """
    old = place.client().job(plain_name(name))
    spec = edits.with_settings(old.body["spec"], set_ or ())
    spec = edits.without_nodes(spec, exclude_node or ())
    if (words := ctx.meta.get(job_options.SCRIPT_ARGS)) is not None:
        spec = edits.with_script_args(spec, words)
    new = old.rerun_with(spec, name=new_name, dry_run=dry_run is not None)
    if dry_run == "client":
        show_new([edits.rerun(old.body, spec, new.name)], output)
        return
    if wait and dry_run is None:
        with detaching(f"detached: {new.name} goes on starting"):
            new = new.wait("running")
    words = f"{'created' if dry_run is None else 'would be created'}, like {old.name}"
    tell(new, words + (f"; it is {new.state}" if wait else ""), output)
