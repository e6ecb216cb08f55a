"""`ddpjob convert`: PyTorchJobs and TrainJobs as DDPJobs."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from ddpjob.cli.exits import Exit
from ddpjob.cli.say import say
from ddpjob.cli.values import FileNames, files_of
from ddpjob.errors import InvalidJob
from ddpjob.text import printable

# Characters of a kind, a namespace, a slash and a name of 253.
MAX_TITLE = 381


class Format(StrEnum):
    """How the DDPJobs are printed."""

    YAML = "yaml"
    JSON = "json"


def convert(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files with PyTorchJobs (kubeflow.org/v1) and TrainJobs "
            "(trainer.kubeflow.org/v1alpha1), YAML or JSON. Training runtimes may be in them too. "
            "- is standard input."
        ),
    ] = None,
    filename: FileNames = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", help="How the DDPJobs are printed: yaml or json.")
    ] = Format.YAML,
) -> None:
    """Turn PyTorchJobs and TrainJobs into DDPJobs, and print these.

    Standard error names each field that is different in the DDPJob or is not in it, with the
    reason. The exit code is 0 then too. It is 2 if an object is neither of the two, or if no DDPJob
    does what it does; the error names the field, the value and the rule. All other objects are
    converted.
    """
    objects, is_whole = _read(files_of(files, filename))
    jobs, is_converted = _converted(objects)
    if jobs:
        typer.echo(_text(jobs, output), nl=False)
    elif is_whole and is_converted:
        say("no PyTorchJob or TrainJob in the input", err=True)
    raise typer.Exit(0 if jobs and is_whole and is_converted else Exit.USAGE)


def _read(files: list[str]) -> tuple[list[tuple[str, Any]], bool]:
    """Return the objects with their files, and whether all files could be read."""
    from ddpjob.client.documents import documents

    found, is_whole = [], True
    for file in files:
        try:
            for body in documents(file):
                found.append((file, body))
        except InvalidJob as error:
            say(f"{file}: {error}", err=True)
            is_whole = False
    return found, is_whole


def _converted(objects: list[tuple[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Return the DDPJobs, and whether no object was refused. Print what is to be known of each."""
    from ddpjob.convert.objects import convert, is_foreign
    from ddpjob.convert.trainjob import is_runtime

    bodies = [body for _, body in objects]
    jobs, is_whole = [], True
    for file, body in objects:
        title = f"{file}: {_title(body)}"
        if is_foreign(body):
            say(f"{title}: left out, because it is neither a PyTorchJob nor a TrainJob", err=True)
        elif not is_runtime(body):
            try:
                converted = convert(body, bodies)
            except InvalidJob as error:
                say(f"{title}: {error}", err=True)
                is_whole = False
            else:
                jobs.append(converted.job)
                say(*(f"{title}: {note}" for note in converted.notes), err=True)
    return jobs, is_whole


def _title(body: Any) -> str:
    """Return the object's kind, namespace and name."""
    if not isinstance(body, dict):
        return "(object)"
    metadata = body.get("metadata")
    parts = metadata if isinstance(metadata, dict) else {}
    name = "/".join(str(parts[part]) for part in ("namespace", "name") if parts.get(part))
    return printable(f"{body.get('kind') or '(object)'} {name}".strip(), MAX_TITLE)


def _text(jobs: list[dict[str, Any]], output: Format) -> str:
    """Return the jobs as YAML documents, or as JSON: one object, or a list of several."""
    if output is Format.YAML:
        from ddpjob.client.documents import to_yaml

        return "---\n".join(map(to_yaml, jobs))
    several = {"apiVersion": "v1", "kind": "List", "items": jobs}
    return json.dumps(jobs[0] if len(jobs) == 1 else several, indent=2) + "\n"
