"""`ddpjob validate`: the checks of the API server and of the operator, without a cluster."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpjob.cli.say import say
from ddpjob.errors import InvalidJob
from ddpjob.text import printable

if TYPE_CHECKING:
    from ddpjob.pods.allowlist import Policy

# Characters of a namespace, a slash and a name of 253.
MAX_TITLE = 317


def validate(
    files: Annotated[
        list[str], typer.Argument(help="Job files, YAML or JSON. - is standard input.")
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            help="File with the installation's allow-list: policy.json of the ConfigMap "
            "ddpjob-operator-policy. By default the chart's defaults apply.",
        ),
    ] = None,
) -> None:
    """Check job files offline, by the rules of the API server and of the operator.

    Each broken rule is printed with its field and value. The exit code is 0 if all files are valid,
    and 1 if one is not.
    """
    from ddpjob.cli.files import documents  # slow to import, as are the models

    allowed = _read_policy(policy) if policy else None
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
                    problems.append(f"{title}metadata.name: duplicate in this file")
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


def _read_policy(path: Path) -> "Policy":
    from ddpjob.pods.allowlist import parse_policy

    try:
        return parse_policy(path.read_bytes())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(printable(f"{path}: {error}"), param_hint="--policy") from None


def check(document: Any, policy: "Policy | None" = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks.

    `policy` is the installation's allow-list, by default that of the chart.
    """
    from ddpjob import api
    from ddpjob.pods import render
    from ddpjob.pods.allowlist import Policy

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
    """Return the object's name, after its namespace if it has one; empty without a name."""
    try:
        meta = document["metadata"]
        name = "/".join(str(meta[field]) for field in ("namespace", "name") if meta.get(field))
    except (AttributeError, KeyError, TypeError):
        return ""
    return printable(name, MAX_TITLE)
