"""`ddpjob validate`: the API server's checks without one, and the render that would follow."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpjob import api
from ddpjob.cli.files import documents
from ddpjob.cli.say import say
from ddpjob.errors import InvalidJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy, parse_policy
from ddpjob.text import printable

MAX_TITLE = 317  # characters, of a namespace, a slash and a name of 253


def validate(
    files: Annotated[list[str], typer.Argument(help="Job files; - for standard input.")],
    policy: Annotated[
        Path | None,
        typer.Option(
            help="The installation's allow-list, policy.json of its ConfigMap "
            "ddpjob-operator-policy; without it the chart's defaults hold.",
        ),
    ] = None,
) -> None:
    """Check job files offline, by the rules of the API server and of the operator.

    Exit code 0: all are good. 1: at least one is not; every broken rule is printed with field and
    value.
    """
    allowed = _read_policy(policy) if policy else Policy()
    broken = False
    for file in files:
        problems: list[str] = []
        names: Counter[str] = Counter()
        try:
            for document in documents(file):
                name = _name(document)
                names[name] += 1
                title = f"{name}: " if name else ""
                problems += [f"{title}{problem}" for problem in check(document, allowed)]
                if name and names[name] == 2:
                    problems.append(f"{title}metadata.name: stands twice in this file")
        except InvalidJob as error:
            problems.append(str(error))
        if not names and not problems:
            problems.append("no object in the file")
        for problem in problems:
            say(f"{file}: {problem}", err=True)
        if not problems:
            say(f"{file}: ok")
        broken |= bool(problems)
    raise typer.Exit(1 if broken else 0)


def _read_policy(path: Path) -> Policy:
    try:
        return parse_policy(path.read_bytes())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(printable(f"{path}: {error}"), param_hint="--policy") from None


def check(document: Any, policy: Policy | None = None) -> list[InvalidJob]:
    """Every reason not to accept this object.

    With a default installation's allow-list unless told otherwise.
    """
    problems = api.validate(document)
    if problems:
        return problems
    job = api.DDPJob.parse(document)
    try:
        render.pods(job, render.Agent(b""), policy or Policy())
    except InvalidJob as problem:
        return [problem]
    return []


def _name(document: Any) -> str:
    """The object's name, with its namespace where it gives one; empty without a name."""
    try:
        meta = document["metadata"]
        name = "/".join(str(meta[field]) for field in ("namespace", "name") if meta.get(field))
    except (AttributeError, KeyError, TypeError):
        return ""
    return printable(name, MAX_TITLE)
