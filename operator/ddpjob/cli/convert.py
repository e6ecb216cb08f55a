"""`ddpjob convert`: PyTorchJobs and TrainJobs as DDPJobs."""

from typing import Annotated, Any, Literal

import typer

from ddpjob import why
from ddpjob.cli.exits import Exit
from ddpjob.cli.options import FileNames, files_of
from ddpjob.cli.output import Form, as_text, document, say
from ddpjob.errors import InvalidJob


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
        Literal["yaml", "json"],
        typer.Option("-o", "--output", help="How the DDPJobs are printed: yaml or json."),
    ] = "yaml",
) -> None:
    """Turn PyTorchJobs and TrainJobs into DDPJobs, and print these.

    Standard error names each field that is different in the DDPJob or is not in it, with the
    reason. The exit code is 0 then too. It is 2 if an object is neither of the two, or if no DDPJob
    does what it does; the error names the field, the value and the rule. All other objects are
    converted.
    """
    from ddpjob.convert.objects import convert, is_foreign
    from ddpjob.convert.trainjob import is_runtime

    found = _read(files_of(files, filename))
    bodies = [body for _, body in found]
    jobs, is_whole = [], True
    for title, body in found:
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
    if jobs:
        document(_text(jobs, output))
    elif is_whole:
        say("no PyTorchJob or TrainJob in the input", err=True)
    raise typer.Exit(Exit.OK if jobs and is_whole else Exit.USAGE)


def _read(files: list[str]) -> list[tuple[str, Any]]:
    """Return the objects with their titles, such as `bert.yaml: PyTorchJob team/bert`."""
    from ddpjob.documents import documents

    found = []
    for file in files:
        try:
            for body in documents(file):
                kind = why.text(body, "kind") or "(object)"
                names = (why.text(body, "metadata", part) for part in ("namespace", "name"))
                name = "/".join(filter(None, names))
                found.append((f"{file}: {kind} {name}".rstrip(), body))
        except InvalidJob as error:
            say(f"{file}: {error}", err=True)
            raise typer.Exit(Exit.USAGE) from None
    return found


def _text(jobs: list[dict[str, Any]], output: Form) -> str:
    """Return the jobs as YAML documents, or as JSON: one object, or a list of several."""
    if output == "yaml":
        return "---\n".join(as_text(job, "yaml") for job in jobs)
    several = {"apiVersion": "v1", "kind": "List", "items": jobs}
    return as_text(jobs[0] if len(jobs) == 1 else several, "json")
