"""The verbs of the command line. The module of each is imported when somebody asks for it."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from ddpjob.cli.exits import Commands
from ddpjob.cli.job_options import ProgramCommand

# For each verb the first sentence of its help. Its function has its name, and so has its module.
VERBS = {
    "submit": "Train with a script on the cluster: send its folder, and create the job.",
    "run": "Run a job on this machine, with the restarts and the progress that it "
    "has on a cluster.",
    "get": "Show jobs: state, progress, and why one is not running.",
    "describe": "Describe a job: how it is and why, its attempts, what failed first, and "
    "what to do next.",
    "logs": "Print what the ranks have printed: rank 0, or the one that failed first.",
    "wait": "Wait for jobs, by default until they have finished.",
    "top": "Show the progress of a job and of each node, in a table that changes until "
    "the job ends.",
    "stacks": "Show where the ranks of a job are: those with the same Python stack in one line.",
    "plot": "Plot a training's loss by step, with its restarts.",
    "suspend": "End the pods of a job, and keep the job: its ranks have their grace period "
    "to save.",
    "resume": "Start a suspended job again, with a new attempt.",
    "rerun": "Create a new job with the spec and the code of this one, which stays as it is.",
    "delete": "Delete jobs, with their pods and logs.",
    "validate": "Check job files by the rules of the API server and of the operator, without "
    "a cluster.",
    "convert": "Turn PyTorchJobs and TrainJobs into DDPJobs, and print these.",
    "doctor": "Check login, API, operator, rights and free GPUs, and say what to do about "
    "each gap.",
    "crd": "Print the CustomResourceDefinition of DDPJob.",
    "completion": "Print the completion script of a shell.",
    "version": "Print the versions of this program and, if the cluster answers, of the "
    "operator there.",
}
# Those with words after `--`.
WITH_PROGRAM = ("submit", "run", "rerun")


class Verbs(Commands):
    """The group of the verbs. What lists them, or completes one, imports none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, text in VERBS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the arguments name, with its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load(listed.name), rest


def load(verb: str | None) -> Any:
    """Import the module of a verb, and return its command."""
    function = getattr(import_module(f"ddpjob.cli.{verb}"), str(verb))
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(verb, cls=ProgramCommand if verb in WITH_PROGRAM else None)(function)
    return typer.main.get_command(alone)
