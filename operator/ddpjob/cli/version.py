"""`ddpjob version`: of this program, the operator and the definition in the cluster."""

import json
from typing import Annotated, Any

import typer

from ddpjob import names
from ddpjob.cli.exits import explain
from ddpjob.cli.options import Place, Recorded
from ddpjob.cli.output import say
from ddpjob.client.installed import Installed, look
from ddpjob.errors import DDPJobError
from ddpjob.version import __version__


def version(
    place: Place,
    client: Annotated[bool, typer.Option("--client", help="Of this program alone.")] = False,
    output: Recorded = "text",
) -> None:
    """Print the versions of this program and, if the cluster answers, of the operator there.

    It also says whether the definition of DDPJob in the cluster is older or newer than this
    program. The exit code is 0 even if the cluster does not answer.
    """
    found: Installed | None = None
    problem = ""
    if not client:
        connection = place.client(notes=False).connection
        try:
            found = look(connection)
        except DDPJobError as error:
            problem = explain(error)[0]
    if output == "json":
        say(json.dumps(_record(found, problem)))
        return
    lines = {"client": __version__}
    if problem:
        lines["server"] = f"unknown: {problem}"
    elif found:
        login = connection.login
        where = f", context {login.context}" if login.context else ""
        lines["server"] = f"{found.server} at {login.server}{where}"
        lines["API"] = definition(found)
        lines["operator"] = "; ".join(map(str, found.operators)) or operator(found)
    say(*(f"{name:<9} {text}" for name, text in lines.items()))


def definition(found: Installed) -> str:
    """Return what there is to say of the definition of DDPJob."""
    kind = f"{names.PLURAL}.{names.GROUP}"
    if not found.versions:
        return f"no {kind}: ddpjob is not installed in this cluster"
    text = f"{kind} {', '.join(found.versions)}"
    if names.VERSION not in found.versions:
        return f"{text}: this client needs {names.VERSION}"
    if found.missing:
        return f"{text}: older than this client, without {', '.join(found.missing)}"
    if found.unknown:
        return f"{text}: newer than this client, which does not know {', '.join(found.unknown)}"
    return text


def operator(found: Installed) -> str:
    """Return why no operator is known."""
    if found.operators_hidden:
        return f"unknown: {found.operators_hidden}"
    return "none in this cluster: jobs stay Pending"


def _record(found: Installed | None, problem: str) -> dict[str, Any]:
    record: dict[str, Any] = {"client": __version__, "server": None, "api": None}
    operators = None
    if found:
        record["server"] = found.server
        record["api"] = {
            "versions": list(found.versions),
            "missing": list(found.missing),
            "unknown": list(found.unknown),
        }
        if not found.operators_hidden:
            operators = [each.record() for each in found.operators]
    return {**record, "operators": operators, "problem": problem or None}
