"""The options that say what a job is to be: those of `submit` and of `run`; some are `rerun`'s."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ddpjob.cli.values import seconds

JOB, CODE = "Job", "Code"
# Where the words after `--` are kept in the context; None without a `--`.
SCRIPT_ARGS = "ddpjob.script_args"
# An option that may stand without its value.
DRY_RUN = "--dry-run"


class DryRun(StrEnum):
    """Who says what would be created."""

    CLIENT = "client"
    SERVER = "server"


class ProgramCommand(TyperCommand):
    """A command whose words after `--` are the script's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words after `--` away, and give `--dry-run` the value that it stands for."""
        own, script = split(args)
        ctx.meta[SCRIPT_ARGS] = script
        words = [f"{DRY_RUN}=client" if word == DRY_RUN else word for word in own]
        try:
            return super().parse_args(ctx, words)
        except Exception as error:
            # Its class is typer's own in one version, and click's in another.
            if script is None and type(error).__name__ == "NoSuchOption":
                error.message += " (the script's own arguments stand after --)"  # type: ignore[attr-defined]
            raise

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line, with the words that this class takes away."""
        pieces = [*self.collect_usage_pieces(ctx), "[-- ARGS...]"]
        formatter.write_usage(ctx.command_path, " ".join(pieces))


def split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the words before the first `--`, and those after it; None without one."""
    if "--" not in args:
        return list(args), None
    place = list(args).index("--")
    return list(args[:place]), list(args[place + 1 :])


def _option(*names: str, help: str, panel: str = JOB, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


File = Annotated[
    str | None,
    typer.Argument(metavar="FILE.py", help="Script to train with. What follows -- is its own."),
]
Module = Annotated[
    str | None, _option("--module", "-m", help="Module to train with, instead of a script.")
]
JobFile = Annotated[
    str | None,
    _option(
        "--filename",
        "-f",
        help="Job file, YAML or JSON. The other options override it. - is standard input.",
    ),
]
Name = Annotated[
    str | None, _option("--name", help="Name of the job. By default it is made of the script's.")
]
Label = Annotated[
    list[str] | None,
    _option("--label", metavar="KEY=VALUE", help="Label of the job. May be repeated."),
]
Nnodes = Annotated[int | None, _option("--nnodes", min=1, help="Number of nodes, one pod each.")]
NprocPerNode = Annotated[
    str | None,
    _option(
        "--nproc-per-node",
        help="Processes of each node: a number, auto, gpu or cpu. By default one for each GPU.",
    ),
]
Gpus = Annotated[int | None, _option("--gpus", min=0, help="GPUs of each node.")]
Cpu = Annotated[str | None, _option("--cpu", help="CPUs of each node, such as 4 or 500m.")]
Memory = Annotated[str | None, _option("--memory", help="Memory of each node, such as 16Gi.")]
Image = Annotated[str | None, _option("--image", help="Image with python3 and torch.")]
PullSecret = Annotated[
    list[str] | None,
    _option(
        "--image-pull-secret", metavar="SECRET", help="Secret to pull the image. May be repeated."
    ),
]
Checkpoint = Annotated[
    str | None,
    _option(
        "--checkpoint",
        metavar="CLAIM[:PATH]",
        help="Claim for checkpoints, mounted at PATH, by default /checkpoints.",
    ),
]
Env = Annotated[
    list[str] | None,
    _option("--env", metavar="NAME=VALUE", help="Variable of the ranks. May be repeated."),
]
EnvFile = Annotated[
    list[str] | None, _option("--env-file", metavar="FILE", help="File of lines NAME=VALUE.")
]
EnvFromSecret = Annotated[
    list[str] | None,
    _option(
        "--env-from-secret",
        metavar="SECRET",
        help="Secret whose keys become variables. May be repeated.",
    ),
]
HangTimeout = Annotated[
    float | None,
    _option(
        "--hang-timeout",
        parser=seconds,
        metavar="TIME",
        help="Restart if no step is made for so long, such as 30m. By default never.",
    ),
]
MaxRestarts = Annotated[
    int | None, _option("--max-restarts", min=0, help="Restarts before the job fails.")
]
Rehearsal = Annotated[
    DryRun | None,
    typer.Option(
        DRY_RUN,
        metavar="[=server]",
        help="Print what would be created; with =server, once the API server has checked it.",
    ),
]
Code = Annotated[
    str | None,
    _option(
        "--code",
        panel=CODE,
        metavar="DIR|none",
        help="Folder to send with the script. By default the current one; none sends nothing.",
    ),
]
CodeInclude = Annotated[
    list[str] | None,
    _option(
        "--code-include",
        panel=CODE,
        metavar="PATH",
        help="Send this file of the folder though it is ignored, or may hold a secret.",
    ),
]
