"""Prints objects of the API as kubectl does: JSON, YAML and names.

Invisible characters are escaped, so no object can move the cursor of a terminal.
"""

import json
from collections.abc import Sequence
from typing import Any

from ddpjob import names
from ddpjob.cli.options import Form
from ddpjob.cli.say import document, say
from ddpjob.client.job import Job


def show(jobs: Sequence[Job], form: Form, *, single: bool) -> None:
    """Print the jobs. A `single` one is printed as itself, others are a List."""
    if form is Form.NAME:
        say(*(f"ddpjob.{names.GROUP}/{job.name}" for job in jobs))
        return
    bodies = [job.body for job in jobs]
    whole = bodies[0] if single else {"apiVersion": "v1", "kind": "List", "items": bodies}
    document(as_text(whole, form))


def as_text(value: Any, form: Form) -> str:
    """Return a value as a document of JSON or YAML, with its line end."""
    if form is Form.JSON:
        return json.dumps(value, indent=2) + "\n"
    from ddpjob.client.documents import to_yaml

    return to_yaml(value)
