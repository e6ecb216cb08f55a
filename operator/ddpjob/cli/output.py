"""Prints what the commands have to say, which may quote anybody. Nothing else prints.

Objects of the API are printed as kubectl does: JSON, YAML and names. live.py, which prints the logs
of a local run in their own colours, is the one exception.
"""

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer

from ddpjob import names
from ddpjob.text import printable, printable_lines

if TYPE_CHECKING:
    from ddpjob.client.job import Job
    from ddpjob.json_depth import Body

STDOUT = 1
# Characters of a Base64 text on a terminal, where nobody reads more of it.
SHOWN = 40
# How jobs are printed, how one is in place of words, and how a record is that is no object.
Output = Literal["table", "wide", "json", "yaml", "name"]
Form = Literal["json", "yaml", "name"]
Record = Literal["text", "json"]


def escape_the_unknown() -> None:
    """Have characters that an output does not have, as those of a log, printed as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*lines: str, err: bool = False) -> None:
    """Print each of these as one printable line."""
    if lines:
        typer.echo("\n".join(map(printable, lines)), err=err)


def note(*lines: str) -> None:
    """Print lines of ddpjob itself to standard error, so that they are not among the data."""
    say(*lines, err=True)


def document(text: str) -> None:
    """Print a text of several lines, such as an object in JSON, as printable lines."""
    typer.echo(printable_lines(text.removesuffix("\n")))


def coloured(lines: Iterable[tuple[str, int | None, str]]) -> None:
    """Print lines that begin with some words in a colour, an SGR code; None is no colour."""
    texts = (
        f"{printable(head)}{printable_lines(text)}"
        if colour is None
        else f"\x1b[{colour}m{printable(head)}\x1b[0m{printable_lines(text)}"
        for head, colour, text in lines
    )
    if found := "\n".join(texts):
        typer.echo(found)


def raw(content: bytes) -> None:
    """Print bytes as they are. Only for somebody who has asked for that."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def close() -> None:
    """Give up standard output, which nobody reads. Python would write what is left at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(job: "Job", words: str, output: Form | None) -> None:
    """Print what has become of the job: in words, or the job itself."""
    if output is None:
        say(f"{job.name} {words}")
    else:
        show_jobs([job], output, single=True)


def show_jobs(jobs: "Sequence[Job]", form: Output, *, single: bool) -> None:
    """Print the jobs. A `single` one is printed as itself, others are a List."""
    if form == "name":
        say(*(f"ddpjob.{names.GROUP}/{job.name}" for job in jobs))
        return
    bodies = [job.body for job in jobs]
    document(as_text(bodies[0] if single else _listed(bodies), form))


def show_new(found: "Sequence[Body]", form: Form | None) -> None:
    """Print objects that a command would create, by default as documents of YAML."""
    if form == "name":
        say(*map(_title, found))
    elif form == "json":
        document(as_text(_listed(found), form))
    else:
        shown = map(_shortened, found) if os.isatty(STDOUT) else found
        document("---\n".join(as_text(body, "yaml") for body in shown))


def _listed(bodies: "Sequence[Body]") -> "Body":
    return {"apiVersion": "v1", "kind": "List", "items": bodies}


def _title(body: "Body") -> str:
    metadata = body["metadata"]
    kind = f"ddpjob.{names.GROUP}" if body["kind"] == names.KIND else body["kind"].lower()
    return f"{kind}/{metadata['name']}"


def _shortened(body: "Body") -> "Body":
    """Return the object with its binary data cut for a terminal."""
    if "binaryData" not in body:
        return body
    data = {
        key: f"{text[:SHOWN]}... (of {len(text)} characters)"
        for key, text in body["binaryData"].items()
    }
    return {**body, "binaryData": data}


def as_text(value: Any, form: Output) -> str:
    """Return a value as a document of JSON or YAML, with its line end."""
    if form == "json":
        return json.dumps(value, indent=2) + "\n"
    from ddpjob.documents import to_yaml

    return to_yaml(value)
