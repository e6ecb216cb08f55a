"""`ddpjob validate`: the API server's checks without one, and the render that would follow."""

from typing import Annotated, Any

import typer

from ddpjob import api, render
from ddpjob.cli.files import documents
from ddpjob.errors import InvalidJob
from ddpjob.policy import Policy


def validate(
    files: Annotated[list[str], typer.Argument(help="Job files; - for standard input.")],
) -> None:
    """Check job files offline, by the rules of the API server and of the operator.

    Exit code 0: all are good. 1: at least one is not; every broken rule is printed with field and
    value.
    """
    broken = False
    for file in files:
        problems: list[str] = []
        count = 0
        try:
            for document in documents(file):
                count += 1
                problems += [f"{_title(document)}{problem}" for problem in check(document)]
        except InvalidJob as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"cannot be read: {error.strerror}")
        if not count and not problems:
            problems.append("no object in the file")
        for problem in problems:
            typer.echo(f"{file}: {problem}", err=True)
        if not problems:
            typer.echo(f"{file}: ok")
        broken |= bool(problems)
    raise typer.Exit(1 if broken else 0)


def check(document: Any, policy: Policy | None = None) -> list[InvalidJob]:
    """Every reason not to accept this object.

    With a default installation's allow-list unless told otherwise.
    """
    problems = api.validate(document)
    if problems:
        return problems
    job = api.DDPJob.parse(document)
    try:
        render.pods(job, render.Agent({}), policy or Policy())
    except InvalidJob as problem:
        return [problem]
    return []


def _title(document: Any) -> str:
    try:
        return f"{document['metadata']['name']}: "
    except (KeyError, TypeError):
        return ""
