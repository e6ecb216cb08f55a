"""Makes objects of templates, with what all objects of a job have. Pure.

Templates are JSON, and a finalize hook encodes every value, so no text of a user can change the
structure. Text of a user is never a template.
"""

from functools import cache
from typing import Any

import jinja2
import orjson

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.api.base import Model
from ddpjob.json_depth import Body


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ddpjob.pods"),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: orjson.dumps(value, default=Model.to_json).decode(),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["names"] = names
    return environment


def labels_of(job: DDPJob) -> dict[str, str]:
    """Return the labels of all that the job owns."""
    return {
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        names.JOB_LABEL: job.name,
        names.JOB_UID_LABEL: job.uid,
    }


def owner_of(job: DDPJob) -> Body:
    """Return the owner reference of all that the job owns."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def render_object(template: str, job: DDPJob, **values: Any) -> Body:
    """Return the object of this template, with `values` besides what all templates know."""
    common = {"job": job, "labels": labels_of(job), "owner": owner_of(job)}
    text = _templates().get_template(template).render(common | values)
    body: Body = orjson.loads(text)
    return body
