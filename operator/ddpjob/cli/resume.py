"""`ddpjob resume`: starts a suspended job again, perhaps changed."""

from typing import Annotated

import typer

from ddpjob import why
from ddpjob.cli.exits import detaching, refuse_finished, until_suspended
from ddpjob.cli.options import Exclusions, Place, Printed, Settings, Target, plain_name
from ddpjob.cli.output import note, tell
from ddpjob.client import edits
from ddpjob.client.job import Job
from ddpjob.errors import Conflict


def resume(
    name: Target,
    place: Place,
    exclude_node: Exclusions = None,
    set_: Settings = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all its nodes run.")] = False,
    output: Printed = None,
) -> None:
    """Start a suspended job again, with a new attempt.

    Changes are made while it is suspended, in the same request. The exit code is 1 if the job fails
    while it is waited for.
    """
    job = place.client().job(plain_name(name))
    refuse_finished(job, f"ddpjob rerun {job.name}{place.flags}")
    if set_ or exclude_node:
        job = _when_suspended(job, place)
    spec = job.body["spec"]
    new = edits.without_nodes(edits.with_settings(spec, set_ or ()), exclude_node or ())
    runs = not spec.get("suspend")
    job = job.patch({"spec": edits.merge_patch(spec, {**new, "suspend": False})})
    if wait:
        with detaching(f"detached: {job.name} goes on starting"):
            job = job.wait("running")
    elif runs:
        note(f"{job.name} was not suspended")
    tell(job, f"is {job.state.lower()}" if wait else "resumes", output)


def _when_suspended(job: Job, place: Place) -> Job:
    """Return the job once it is suspended, when all of its spec may change. Raises Conflict."""
    if not job.body["spec"].get("suspend") and job.state not in why.BEFORE_PODS:
        text = f"{job.name} is {job.state}; its spec can change only while it is suspended"
        advice = f"ddpjob suspend {job.name}{place.flags} --wait"
        raise Conflict(409, "NotSuspended", text, advice=advice)
    if job.state not in ("Suspended", *why.BEFORE_PODS):
        job = until_suspended(job, f"nothing is changed: {job.name} stays suspended")
        refuse_finished(job, f"ddpjob rerun {job.name}{place.flags}")
    return job
