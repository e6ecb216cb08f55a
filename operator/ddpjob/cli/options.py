"""What the commands that talk to a cluster share: options, and the client that they lead to."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from ddpjob import names
from ddpjob.cli.output import Form, Record, note
from ddpjob.text import printable

if TYPE_CHECKING:
    from ddpjob.client.client import Client
    from ddpjob.client.job import Job


# Seconds for which a TAB waits for a server that does not answer.
TAB_SECONDS = 1.5
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([dhms])", re.ASCII)


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function of a verb with options in place of its dataclasses.

    These are the fields of the dataclass that are annotated as options. Those of Place come last.
    """
    parameters, last = list[inspect.Parameter](), list[inspect.Parameter]()
    groups = dict[str, tuple[type, list[str]]]()
    for parameter in inspect.signature(function).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            found = inspect.signature(kind).parameters.values()
            options = [each for each in found if get_origin(each.annotation) is Annotated]
            groups[parameter.name] = kind, [each.name for each in options]
            (last if kind is Place else parameters).extend(options)
        else:
            parameters.append(parameter)

    @wraps(function)
    def verb(**given: Any) -> None:
        for name, (kind, options) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in options})
        function(**given)

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*parameters, *last)]
    verb.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return verb


def complete_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of jobs for the shell; none where the cluster does not answer."""
    try:
        place = Place(**{each.name: ctx.params.get(each.name) for each in fields(Place)})
        client = place.client(notes=False)
        client.connection.connect_seconds = TAB_SECONDS
        jobs = client.jobs()
    except Exception:  # a TAB must not print a traceback into the line that is typed
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Job. By default it is your newest one.",
        autocompletion=complete_names,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Jobs. By default it is your newest one.",
        autocompletion=complete_names,
    ),
]
# Beside the argument FILES, because `kubectl apply` and `submit` have the option.
FileNames = Annotated[
    list[str] | None,
    typer.Option("--filename", "-f", help="Another way to name a file. May be repeated."),
]
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
Recorded = Annotated[Record, typer.Option("--output", "-o", help="Print text, or objects of JSON.")]
Printed = Annotated[
    Form | None,
    typer.Option("--output", "-o", help="Print the job as json, yaml or name instead of words."),
]


@dataclass(frozen=True)
class Place:
    """Which cluster, and which namespace of it."""

    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace. By default it is that of the context."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(help="Context of the kubeconfig. By default it is the current one."),
    ] = None
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig file. By default it is $KUBECONFIG or ~/.kube/config."),
    ] = None

    @property
    def flags(self) -> str:
        """Return the options that lead to this place again, with a space before each."""
        named = {"-n": self.namespace, "--context": self.context, "--kubeconfig": self.kubeconfig}
        return "".join(
            f" {flag} {quote(str(value))}" for flag, value in named.items() if value is not None
        )

    def client(self, *, notes: bool = True) -> "Client":
        """Return the client. It says on standard error that the server does not answer."""
        from ddpjob.client.client import Client

        return Client(
            self.namespace,
            context=self.context,
            kubeconfig=self.kubeconfig,
            note=note if notes else lambda line: None,
        )


def find(client: "Client", name: str | None) -> "Job":
    """Return the job of this name, or the user's newest one, and say which. Raises NotFound."""
    if name is not None:
        return client.job(plain_name(name))
    job = client.newest()
    note(f"{job.name}: your newest job in namespace {job.namespace}")
    return job


def plain_name(name: str) -> str:
    """Return a job's name, which may be written as `-o name` does: `ddpjob.ddpjob.dev/digits`."""
    kind, slash, rest = name.partition("/")
    known = (names.PLURAL, "ddpjob", f"ddpjob.{names.GROUP}", f"{names.PLURAL}.{names.GROUP}")
    return rest if slash and kind in known else name


def seconds(text: str) -> float:
    """Return a time such as `8h`, `1h30m`, `90s` or `90` in seconds. Raises typer.BadParameter."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise bad(f"must be a time such as 90s, 30m, 8h or 1h30m, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def bad(rule: str, option: str | None = None) -> typer.BadParameter:
    """Return the error for an option's value: the rule, and the value."""
    return typer.BadParameter(printable(rule), param_hint=option)


def files_of(arguments: list[str] | None, option: list[str] | None) -> list[str]:
    """Return the files that a command was given in either way. Raises BadParameter for none."""
    if found := [*(arguments or ()), *(option or ())]:
        return found
    raise bad("name a file; - is standard input", "FILES")
