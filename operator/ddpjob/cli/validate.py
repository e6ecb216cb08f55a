"""`ddpjob validate`: the checks of the API server and of the operator, without a cluster."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpjob import names
from ddpjob.cli.exits import Exit
from ddpjob.cli.say import say
from ddpjob.errors import InvalidJob
from ddpjob.text import printable
from ddpjob_agent.archive import ARCHIVE_BYTES

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
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="Archive that spec.code stands for. Give the option once for each part, in order.",
        ),
    ] = None,
) -> None:
    """Check job files offline, by the rules of the API server and of the operator.

    Each broken rule is printed with its field and value. The exit code is 0 if all files are valid,
    and 2 if one is not.
    """
    from ddpjob.client.documents import documents  # slow to import, as are the models

    allowed = _read_policy(policy) if policy else None
    archive = _read_archive(code) if code else None
    broken = False
    for file in files:
        problems: list[str] = []
        titles: Counter[str] = Counter()
        try:
            for document in documents(file):
                name = _name(document)
                titles[name] += 1
                title = f"{name}: " if name else ""
                found = check(document, allowed) or _check_code(document, archive)
                problems += [f"{title}{problem}" for problem in found]
                if name and titles[name] == 2:
                    problems.append(f"{title}metadata.name: duplicate in this file, got {name}")
        except InvalidJob as error:
            problems.append(str(error))
        if not titles and not problems:
            problems.append("no object in the file")
        for problem in problems:
            say(f"{file}: {problem}", err=True)
        if not problems:
            say(f"{file}: ok")
        broken |= bool(problems)
    raise typer.Exit(Exit.USAGE if broken else 0)


def _read_policy(path: Path) -> "Policy":
    from ddpjob.pods.allowlist import parse_policy

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
            raise typer.BadParameter(
                printable(f"{path}: {error.strerror}"), param_hint="--code"
            ) from None
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


def check(document: Any, policy: "Policy | None" = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks.

    `policy` is the installation's allow-list, by default that of the chart.
    """
    from ddpjob import api
    from ddpjob.pods import render
    from ddpjob.pods.allowlist import Policy

    problems = api.validate(document)
    try:
        job = api.DDPJob.parse(_without(document, problems) if problems else document)
    except InvalidJob:
        return problems
    return problems + render.problems(job, policy or Policy())


# Without one of these it is not known which volumes and mounts a pod would have.
_VOLUMES = {"volumes", "volumeMounts", "checkpoint", "data", "template", "master"}
_ANY = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "any"}}


def _without(document: Any, problems: list[InvalidJob]) -> dict[str, Any]:
    """Return a job with those fields of the spec that no problem is about.

    Its pods can be judged, so that a user reads of what is wrong with them too. It is empty if they
    cannot be judged.
    """
    broken = {match[1] for p in problems if (match := re.match(r"spec[.](\w+)", p.path))}
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict) or broken & _VOLUMES:
        return {}
    kept = {name: value for name, value in spec.items() if name not in broken}
    return _ANY | {"spec": {"image": "any", "args": ["any"]} | kept}


def _name(document: Any) -> str:
    """Return the object's name, after its namespace if it has one; empty without a name."""
    try:
        meta = document["metadata"]
        name = "/".join(str(meta[field]) for field in ("namespace", "name") if meta.get(field))
    except (AttributeError, KeyError, TypeError):
        return ""
    from ddpjob.api.base import below

    return printable(below(name).removeprefix("."), MAX_TITLE)
