"""What the commands that talk to a cluster share: options, and the client that they lead to."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpjob import names
from ddpjob.cli.say import note

if TYPE_CHECKING:
    from ddpjob.client.client import Client
    from ddpjob.client.job import Job


# Seconds for which a TAB waits for a server that does not answer.
TAB_SECONDS = 1.5


class Output(StrEnum):
    """How objects are printed, as kubectl does."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Form(StrEnum):
    """How a job is printed that a command has made or changed, in place of words."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Record(StrEnum):
    """How a record is printed that is no object of Kubernetes."""

    TEXT = "text"
    JSON = "json"


class Format(StrEnum):
    """How lines of logs are printed."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def complete_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of jobs for the shell; none where the cluster does not answer."""
    params = getattr(ctx, "params", {})
    try:
        client = Place.of(params).client(notes=False)
        client.connection.connect_seconds = TAB_SECONDS
        jobs = client.jobs()
    except Exception:  # a TAB must not print a traceback into the line that is typed
        return []
    return [job.name for job in jobs if job.name.startswith(incomplete)]


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace. By default it is that of the context.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig. By default it is the current one."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig file. By default it is $KUBECONFIG or ~/.kube/config.",
    ),
]
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


@dataclass(frozen=True)
class Place:
    """Which cluster, and which namespace of it."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Place":
        """Return the place that a command's parameters name."""
        return cls(params.get("namespace"), params.get("context"), params.get("kubeconfig"))

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
