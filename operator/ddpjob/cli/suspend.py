"""`ddpjob suspend`: ends the pods of a job, and keeps the job."""

from typing import Annotated

import typer

from ddpjob.cli.exits import refuse_finished, until_suspended
from ddpjob.cli.options import Place, Printed, Target, plain_name
from ddpjob.cli.output import tell


def suspend(
    name: Target,
    place: Place,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no pod runs any more.")] = False,
    output: Printed = None,
) -> None:
    """End the pods of a job, and keep the job: its ranks have their grace period to save.

    `ddpjob resume` starts it again. In between any field of its spec may be changed.
    """
    job = place.client().job(plain_name(name))
    refuse_finished(job, f"ddpjob delete {job.name}{place.flags} removes it, and its pods")
    job = job.suspend()
    if wait and job.state != "Suspended":
        job = until_suspended(job, f"detached: {job.name} goes on suspending")
        refuse_finished(job, "")
    later = "suspends: its ranks may save, then its pods end"
    tell(job, "is suspended" if job.state == "Suspended" else later, output)
