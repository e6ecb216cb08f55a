"""`ddpjob rerun`: a new job like another one."""

from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob.cli.changing import Exclusions, Format, Settings, Target, tell
from ddpjob.cli.interrupt import detaching
from ddpjob.cli.options import Context, Kubeconfig, Namespace, Place, plain_name
from ddpjob.cli.say import note

if TYPE_CHECKING:
    from ddpjob.client.job import Job


def rerun(
    name: Target,
    new_name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the new job. By default NAME-2, or the next number."),
    ] = None,
    exclude_node: Exclusions = None,
    set_: Settings = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all its nodes run.")] = False,
    namespace: Namespace = None,
    output: Format = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Create a new job with the spec and the code of this one, which stays as it is.

    A finished job never starts again; this is how its work is done once more. With a checkpoint the
    new job goes on from what the old one has saved.
    """
    from ddpjob.client import edits

    settings = [edits.Setting.parse(text) for text in set_ or ()]
    old = Place(namespace, context, kubeconfig).client().job(plain_name(name))
    spec = edits.with_settings(old.body["spec"], settings)
    new = old.rerun_with(edits.without_nodes(spec, exclude_node or ()), name=new_name)
    if claim := _shared_claim(old, new):
        note(f"{old.name} is {old.state}, and both write to the checkpoints in claim {claim}")
    if wait:
        with detaching(f"detached: {new.name} goes on starting"):
            new = new.wait("running")
    tell(new, f"created, like {old.name}" + (f"; it is {new.state}" if wait else ""), output)


def _shared_claim(old: "Job", new: "Job") -> str:
    """Return the claim with the checkpoints of both jobs, if the old one may still write to it."""
    from ddpjob.client import why

    claims = {
        why.text(job.body, "spec", "checkpoint", "volume", "persistentVolumeClaim", "claimName")
        for job in (old, new)
    }
    return claims.pop() if len(claims) == 1 and not old.is_finished else ""
