"""What the commands that change a job share: their options, what they refuse, what they print."""

from typing import Annotated

import typer

from ddpjob.cli import objects
from ddpjob.cli.options import Form, complete_names
from ddpjob.cli.say import say
from ddpjob.client.job import Job
from ddpjob.errors import Conflict

# NAME is no default here: a change is made to the job that is named, and to no other.
Target = Annotated[str, typer.Argument(metavar="NAME", help="Job.", autocompletion=complete_names)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the spec, such as nnodes=4 or env.LR=0.1. May be repeated.",
    ),
]
Exclusions = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-node",
        metavar="NODE",
        help="Keep the pods off this node from now on. May be repeated.",
    ),
]
Format = Annotated[
    Form | None,
    typer.Option("--output", "-o", help="Print the job as json, yaml or name instead of words."),
]


def tell(job: Job, words: str, output: Form | None) -> None:
    """Print what has become of the job: in words, or the job itself."""
    if output is None:
        say(f"{job.name} {words}")
    else:
        objects.show([job], output, single=True)


def refuse_finished(job: Job, advice: str) -> None:
    """Raise Conflict if the job has finished: it never starts again."""
    if job.is_finished:
        text = f"{job.name} has {job.state.lower()}; a finished job never starts again"
        error = Conflict(409, "Finished", text)
        error.advice = advice
        raise error
