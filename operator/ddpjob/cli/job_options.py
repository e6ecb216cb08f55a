"""The options that say what a job is to be, and what they ask for: the job, and the code to send.

They are those of `submit` and of `run`; some are `rerun`'s.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ddpjob.cli.options import seconds
from ddpjob.errors import InvalidJob

if TYPE_CHECKING:
    from ddpjob.client.jobfile import JobFile as Content
    from ddpjob.json_depth import Body

JOB, CODE = "Job", "Code"
# Where the words after `--` are kept in the context; None without a `--`.
SCRIPT_ARGS = "ddpjob.script_args"
# An option that may stand without its value.
DRY_RUN = "--dry-run"
# Options of a cluster, which have no effect on this machine, by the names of their parameters.
CLUSTERS = {
    "label": "--label",
    "namespace": "--namespace",
    "context": "--context",
    "kubeconfig": "--kubeconfig",
    "watch": "--watch",
    "code_include": "--code-include",
}
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
    Literal["client", "server"] | None,
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


@dataclass(frozen=True)
class Asked:
    """The options of one command, by their names."""

    given: Mapping[str, Any]
    script_args: Sequence[str] | None

    @classmethod
    def of(cls, ctx: Any) -> "Asked":
        """Return what a command's context asks for. Raises InvalidJob for too many programs.

        FILE may be a job file: one that does not end with `.py` is.
        """
        given = dict(ctx.params)
        if given["file"] and not given["file"].endswith(".py"):
            if given["filename"]:
                raise InvalidJob("-f", f"name one job file, not {given['file']!r} too")
            given |= {"file": None, "filename": given["file"]}
        asked = cls(given, ctx.meta.get(SCRIPT_ARGS))
        if asked.given["file"] and asked.given["module"]:
            raise InvalidJob("-m", f"give a script or a module, not both: {asked.given['file']!r}")
        if not (asked.given["file"] or asked.given["module"] or asked.given["filename"]):
            raise InvalidJob("FILE.py", "is required, or -m MODULE, or -f job.yaml")
        return asked

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the options that were given and have no effect on this machine."""
        given = {name: self.given.get(name) for name in CLUSTERS}
        named = {**CLUSTERS, "watch": "--detach" if given["watch"] is False else "--watch"}
        return tuple(named[name] for name, value in given.items() if value not in (None, [], ()))

    @cached_property
    def file(self) -> "Content | None":
        """Return what is in the job file, or None without a file. Raises InvalidJob."""
        from ddpjob.client.jobfile import read_job

        name = self.given["filename"]
        return None if name is None else read_job(name)

    @property
    def base(self) -> Any:
        """Return the object in the job file, or None without a file. Raises InvalidJob."""
        return self.file.job if self.file else None

    @property
    def config_maps(self) -> "tuple[Body, ...]":
        """Return the ConfigMaps of the job file that go with the job.

        None does if the code is to be that of a folder, or if nothing is to be sent.
        """
        is_files = self.file and self.folder is None and self.given["code"] != NO_CODE
        return self.file.config_maps if self.file and is_files else ()

    @cached_property
    def folder(self) -> Path | None:
        """Return the folder with the code that goes with the job, or None.

        By default it is the current folder if the script or module is there. Raises InvalidJob.
        """
        asked, module = self.given["code"], self.given["module"]
        if asked == NO_CODE or asked is None and not (self.given["file"] or module):
            return None
        if asked is None and module and not _is_here(module):
            return None  # a module of the image
        folder = Path(asked or ".")
        if not os.path.isdir(folder):
            raise InvalidJob("--code", f"there is no folder {str(folder)!r}")
        return folder

    @property
    def script(self) -> str | None:
        """Return the script's path from the folder of the code, with slashes; None without one.

        Raises InvalidJob for a script that does not exist, or is elsewhere.
        """
        file = self.given["file"]
        if file is None or self.folder is None:
            return None if file is None else str(file)
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
        given = self.given
        program = ["-m", given["module"]] if given["module"] else None
        if script := self.script:
            program = [script]
        nproc, hang = given["nproc_per_node"], given["hang_timeout"]
        as_given = ("name", "nnodes", "gpus", "cpu", "memory", "checkpoint", "max_restarts")
        options = JobOptions(
            args=None if program is None else [*program, *(self.script_args or ())],
            script_args=self.script_args if program is None else None,
            labels=dict(_pair(text, "--label", "KEY") for text in given.get("label") or ()),
            image=given["image"] or image,
            nproc_per_node=int(nproc) if re.fullmatch("[0-9]{1,6}", nproc or "") else nproc,
            env=self._env(),
            env_from_secret=given["env_from_secret"] or (),
            image_pull_secrets=given["image_pull_secret"] or (),
            hang_timeout_seconds=None if hang is None else math.ceil(hang),
            **{name: given[name] for name in as_given},
        )
        return build_job(options, self.base)

    def _env(self) -> dict[str, str]:
        """Return the variables of the files, then those of the options, which win."""
        found: dict[str, str] = {}
        for file in self.given["env_file"] or ():
            found |= read_env_file(file)
        return found | dict(_pair(text, "--env") for text in self.given["env"] or ())


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
            name, value = _pair(text, f"--env-file {file}, line {number}")
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in ("'", '"'):
                value = value[1:-1]
            found[name] = value
    return found


def _pair(text: str, where: str, key: str = "NAME") -> tuple[str, str]:
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
    metadata = job.get("metadata")
    own = metadata.get("namespace") if isinstance(metadata, dict) else None
    if namespace and own and own != namespace:
        raise InvalidJob("metadata.namespace", f"must be {namespace}, as -n says, got {own!r}", own)
