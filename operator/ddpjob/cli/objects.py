"""Prints objects of the API as kubectl does: JSON, YAML and names.

Invisible characters are escaped, so no object can move the cursor of a terminal.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from ddpjob import names
from ddpjob.cli.options import Form
from ddpjob.cli.say import document, say
from ddpjob.client.job import Job
from ddpjob.json_depth import Body

STDOUT = 1
# Characters of a Base64 text on a terminal, where nobody reads more of it.
SHOWN = 40


def show(jobs: Sequence[Job], form: Form, *, single: bool) -> None:
    """Print the jobs. A `single` one is printed as itself, others are a List."""
    if form is Form.NAME:
        say(*(f"ddpjob.{names.GROUP}/{job.name}" for job in jobs))
        return
    bodies = [job.body for job in jobs]
    document(as_text(bodies[0] if single else _listed(bodies), form))


def show_new(found: Sequence[Body], form: Form | None) -> None:
    """Print objects that a command would create, by default as documents of YAML."""
    if form is Form.NAME:
        say(*map(_title, found))
    elif form is Form.JSON:
        document(as_text(_listed(found), form))
    else:
        shown = map(_shortened, found) if os.isatty(STDOUT) else found
        document("---\n".join(as_text(body, Form.YAML) for body in shown))


def _listed(bodies: Sequence[Body]) -> Body:
    return {"apiVersion": "v1", "kind": "List", "items": bodies}


def _title(body: Body) -> str:
    metadata = body["metadata"]
    kind = f"ddpjob.{names.GROUP}" if body["kind"] == names.KIND else body["kind"].lower()
    return f"{kind}/{metadata['name']}"


def _shortened(body: Body) -> Body:
    """Return the object with its binary data cut for a terminal."""
    if "binaryData" not in body:
        return body
    data = {
        key: f"{text[:SHOWN]}... (of {len(text)} characters)"
        for key, text in body["binaryData"].items()
    }
    return {**body, "binaryData": data}


def as_text(value: Any, form: Form) -> str:
    """Return a value as a document of JSON or YAML, with its line end."""
    if form is Form.JSON:
        return json.dumps(value, indent=2) + "\n"
    from ddpjob.client.documents import to_yaml

    return to_yaml(value)
