"""The options that say what a job is to be, and what they ask for: the job, and the code to send.

They are those of `submit` and of `run`; some are `rerun`'s.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ddpjob import why
from ddpjob.cli.options import Recorded, seconds
from ddpjob.errors import InvalidJob

if TYPE_CHECKING:
    from ddpjob.client.jobfile import JobFile
    from ddpjob.json_depth import Body

# Where the words after `--` are kept in the context; None without a `--`.
SCRIPT_ARGS = "ddpjob.script_args"
# An option that may stand without its value.
DRY_RUN = "--dry-run"
# Parameters with options of a cluster, which have no effect on this machine.
CLUSTERS = ("label", "namespace", "context", "kubeconfig", "watch", "code_include")
# The value of --code that sends nothing.
NO_CODE = "none"


class ProgramCommand(TyperCommand):
    """A command whose words after `--` are the script's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words after `--` away, and give `--dry-run` the value that it stands for."""
        end = args.index("--") if "--" in args else len(args)
        script = ctx.meta[SCRIPT_ARGS] = args[end + 1 :] if end < len(args) else None
        words = [f"{DRY_RUN}=client" if word == DRY_RUN else word for word in args[:end]]
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


Rehearsal = Annotated[
    Literal["client", "server"] | None,
    typer.Option(
        DRY_RUN,
        metavar="[=server]",
        help="Print what would be created; with =server, once the API server has checked it.",
    ),
]

Included = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Send this file of the folder though it is ignored, or may hold a secret.",
    ),
]


@dataclass(frozen=True)
class Asked:
    """The options that say what a job is to be."""

    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Script to train with (.py), or job file. - is standard input. What follows -- is "
            "the script's own.",
        ),
    ] = None
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", help="Module to train with, instead of a script."),
    ] = None
    filename: Annotated[
        str | None,
        typer.Option(
            "--filename",
            "-f",
            help="Job file, YAML or JSON. The other options override it. - is standard input.",
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option(help="Name of the job. By default it is made of the script's.")
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Label of the job. May be repeated."),
    ] = None
    nnodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes, one pod each.")] = None
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of each node.")] = None
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            help="Processes of each node: a number, auto, gpu or cpu. By default one for each GPU."
        ),
    ] = None
    image: Annotated[str | None, typer.Option(help="Image with python3 and torch.")] = None
    image_pull_secret: Annotated[
        list[str] | None,
        typer.Option(metavar="SECRET", help="Secret to pull the image. May be repeated."),
    ] = None
    cpu: Annotated[str | None, typer.Option(help="CPUs of each node, such as 4 or 500m.")] = None
    memory: Annotated[str | None, typer.Option(help="Memory of each node, such as 16Gi.")] = None
    code: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="Folder to send with the script. By default the current one; none sends nothing.",
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="CLAIM[:PATH]",
            help="Claim for checkpoints, mounted at PATH, by default /checkpoints.",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Variable of the ranks. May be repeated."),
    ] = None
    env_file: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="File of lines NAME=VALUE.")
    ] = None
    env_from_secret: Annotated[
        list[str] | None,
        typer.Option(metavar="SECRET", help="Secret whose keys become variables. May be repeated."),
    ] = None
    hang_timeout: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Restart if no step is made for so long, such as 30m. By default never.",
        ),
    ] = None
    max_restarts: Annotated[
        int | None, typer.Option(min=0, help="Restarts before the job fails.")
    ] = None
    script_args: Sequence[str] | None = None
    """The words after `--`; None without a `--`."""
    keep_seconds: int | None = None
    """Seconds for which pods are kept once their ranks have ended; None is as the file has it."""
    ignored: tuple[str, ...] = ()
    """The options that were given and have no effect on this machine."""

    def within(self, ctx: Any) -> "Asked":
        """Return the same with what else the command's context has. Raises InvalidJob.

        FILE may be a job file: one that does not end with `.py` is.
        """
        file, filename = self.file, self.filename
        if file and not file.endswith(".py"):
            if filename:
                raise InvalidJob("-f", f"name one job file, not {file!r} too")
            file, filename = None, file
        if file and self.module:
            raise InvalidJob("-m", f"give a script or a module, not both: {file!r}")
        if not (file or self.module or filename):
            raise InvalidJob("FILE.py", "is required, or -m MODULE, or -f job.yaml")
        given = [name for name in CLUSTERS if ctx.params.get(name) not in (None, [], ())]
        if ctx.params["watch"] is False:
            given[given.index("watch")] = "detach"
        return replace(
            self,
            file=file,
            filename=filename,
            script_args=ctx.meta.get(SCRIPT_ARGS),
            ignored=tuple(f"--{name.replace('_', '-')}" for name in given),
        )

    @cached_property
    def content(self) -> "JobFile | None":
        """Return what is in the job file, or None without a file. Raises InvalidJob."""
        from ddpjob.client.jobfile import read_job

        return None if self.filename is None else read_job(self.filename)

    @property
    def base(self) -> Any:
        """Return the object in the job file, or None without a file. Raises InvalidJob."""
        return self.content.job if self.content else None

    @property
    def config_maps(self) -> "tuple[Body, ...]":
        """Return the ConfigMaps of the job file that go with the job; none beside other code."""
        if self.content is None or self.folder is not None or self.code == NO_CODE:
            return ()
        return self.content.config_maps

    @cached_property
    def folder(self) -> Path | None:
        """Return the folder with the code that goes with the job, or None.

        By default it is the current folder if the script or module is there. Raises InvalidJob.
        """
        if self.code == NO_CODE or self.code is None and not (self.file or self.module):
            return None
        if self.code is None and self.module and not _is_here(self.module):
            return None  # a module of the image
        folder = Path(self.code or ".")
        if not os.path.isdir(folder):
            raise InvalidJob("--code", f"there is no folder {str(folder)!r}")
        return folder

    @property
    def script(self) -> str | None:
        """Return the script's path from the folder of the code, with slashes; None without one.

        Raises InvalidJob for a script that does not exist, or is elsewhere.
        """
        file = self.file
        if file is None or self.folder is None:
            return file
        if not Path(file).is_file():
            raise InvalidJob("FILE.py", f"there is no file {file!r} in {os.getcwd()!r}", file)
        try:
            return Path(file).resolve().relative_to(self.folder.resolve()).as_posix()
        except ValueError:
            rule = f"{file!r} is not in the folder {str(self.folder)!r}; name its folder"
            raise InvalidJob("FILE.py", f"{rule}: --code DIR", file) from None

    def job(self, image: str | None = None) -> Any:
        """Return the object of the job, with `image` where none is named. Raises InvalidJob."""
        from ddpjob.client.build import JobOptions, build_job  # the models are slow to import

        if self.base is not None and not isinstance(self.base, dict):
            return self.base  # the check says what is wrong with it
        program = ["-m", self.module] if self.module else None
        if script := self.script:
            program = [script]
        nproc, hang = self.nproc_per_node, self.hang_timeout
        as_given = ("name", "nnodes", "gpus", "cpu", "memory", "checkpoint", "max_restarts")
        options = JobOptions(
            args=None if program is None else [*program, *(self.script_args or ())],
            script_args=self.script_args if program is None else None,
            labels=dict(pair(text, "--label", "KEY") for text in self.label or ()),
            image=self.image or image,
            nproc_per_node=int(nproc) if nproc and re.fullmatch("[0-9]{1,6}", nproc) else nproc,
            env=self._env(),
            env_from_secret=self.env_from_secret or (),
            image_pull_secrets=self.image_pull_secret or (),
            hang_timeout_seconds=None if hang is None else math.ceil(hang),
            **{name: getattr(self, name) for name in as_given},
        )
        job = build_job(options, self.base)
        if self.keep_seconds is not None:
            job = {**job, "spec": {**job["spec"], "keepSeconds": self.keep_seconds}}
        return job

    def _env(self) -> dict[str, str]:
        """Return the variables of the files, then those of the options, which win."""
        found: dict[str, str] = {}
        for file in self.env_file or ():
            found |= read_env_file(file)
        return found | dict(pair(text, "--env") for text in self.env or ())


@dataclass(frozen=True)
class Here:
    """How a job is run on this machine."""

    logs: Annotated[
        bool, typer.Option("--logs/--quiet", help="Print the output of rank 0, or do not.")
    ] = True
    directory: Annotated[
        Path, typer.Option(help="Folder for logs, and for the folders that stand in for volumes.")
    ] = Path(".ddpjob")
    grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds in which the ranks may save and exit after Ctrl-C or SIGTERM."
        ),
    ] = 10.0
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the pods' own folders (HOME, caches) after the run."),
    ] = False
    output: Recorded = "text"


def read_env_file(file: str) -> dict[str, str]:
    """Return the variables in a file of lines `NAME=VALUE`. Raises InvalidJob.

    Empty lines and those that begin with # are left out, and so are `export` before a name, blanks
    around a value, and quotes around a whole value.
    """
    try:
        content = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidJob("--env-file", f"{file}: {error.strerror}", file) from None
    except UnicodeDecodeError:
        raise InvalidJob("--env-file", f"{file}: must be text in UTF-8", file) from None
    found: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), 1):
        text = line.strip().removeprefix("export ").strip()
        if text and not text.startswith("#"):
            name, value = pair(text, f"--env-file {file}, line {number}")
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in ("'", '"'):
                value = value[1:-1]
            found[name] = value
    return found


def pair(text: str, where: str, key: str = "NAME") -> tuple[str, str]:
    """Return name and value. The error does not have the text, which may be a secret."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidJob(where, f"must be {key}=VALUE, got a text without '='")
    return name.strip(), value


def _is_here(module: str) -> bool:
    """Return whether the module, or its package, is in the current folder."""
    top = module.partition(".")[0]
    return bool(top) and (Path(top).is_dir() or Path(f"{top}.py").is_file())


def in_namespace(job: "Body", namespace: str | None) -> None:
    """Raise InvalidJob if the file has another namespace than the option."""
    own = why.text(job, "metadata", "namespace")
    if namespace and own and own != namespace:
        raise InvalidJob("metadata.namespace", f"must be {namespace}, as -n says, got {own!r}", own)
