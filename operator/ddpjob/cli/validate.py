"""`ddpjob validate`: the checks of the API server and of the operator, without a cluster."""

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
from ddpjob_agent.archive import ARCHIVE_BYTES

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
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="Archive that spec.code stands for. Give the option once for each part, in order.",
        ),
    ] = None,
) -> None:
    """Check job files offline, by the rules of the API server and of the operator.

    Each broken rule is printed with its field and value. The exit code is 0 if all files are valid,
    and 1 if one is not.
    """
    allowed = _read_policy(policy) if policy else Policy()
    archive = _read_archive(code) if code else None
    broken = False
    for file in files:
        problems: list[str] = []
        names: Counter[str] = Counter()
        try:
            for document in documents(file):
                name = _name(document)
                names[name] += 1
                title = f"{name}: " if name else ""
                found = check(document, allowed) or _check_code(document, archive)
                problems += [f"{title}{problem}" for problem in found]
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


def _read_policy(path: Path) -> Policy:
    try:
        return parse_policy(path.read_bytes())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(printable(f"{path}: {error}"), param_hint="--policy") from None


def _read_archive(parts: list[Path]) -> list[bytes]:
    """Return the parts of an archive; what is too large for one is not read to its end."""
    found = []
    for path in parts:
        try:
            with path.open("rb") as file:
                found.append(file.read(ARCHIVE_BYTES + 1))
        except OSError as error:
            words = printable(f"{path}: {error.strerror}")
            raise typer.BadParameter(words, param_hint="--code") from None
    return found


def _check_code(document: Any, archive: list[bytes] | None) -> list[InvalidJob]:
    """Return why the agent would refuse the archive of a valid job, if it would."""
    code = document["spec"].get("code")
    if archive is None:
        return []
    if not code:
        return [InvalidJob("spec.code", "is required with --code")]
    from ddpjob.client.code import verify  # few need it

    try:
        verify(archive, code["sha256"])
    except InvalidJob as problem:
        return [InvalidJob("spec.code", problem.rule)]
    return []


def check(document: Any, policy: Policy | None = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks.

    `policy` is the installation's allow-list, by default that of the chart.
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
    """Return the object's name, after its namespace if it has one; empty without a name."""
    try:
        meta = document["metadata"]
        name = "/".join(str(meta[field]) for field in ("namespace", "name") if meta.get(field))
    except (AttributeError, KeyError, TypeError):
        return ""
    return printable(name, MAX_TITLE)
