"""Jobs and pods for tests, a line each."""

import json
from dataclasses import replace
from typing import Any

from ddpjob import api, names
from ddpjob.api import DDPJob
from ddpjob.plan import decide as core
from ddpjob.plan import decision
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.proof import print_of, proofs

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
UID = "11111111-2222-3333-4444-555555555555"


def job_object(name: str = "digits", **spec: Any) -> dict[str, Any]:
    """A DDPJob as YAML would give it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"image": "trainer:1", "args": ["train.py"], **spec},
    }


def job(name: str = "digits", *, status: dict[str, Any] | None = None, **spec: Any) -> DDPJob:
    """A stored DDPJob, with two nodes unless told otherwise."""
    body = job_object(name, **{"nnodes": 2, **spec})
    body["metadata"] |= {
        "namespace": "team",
        "uid": UID,
        "generation": 1,
        "resourceVersion": "10",
    }
    if status is not None:
        body["status"] = status
    return DDPJob.parse(body)


IDENTITY: dict[str, Any] = {
    "name": "digits-0-1",
    "uid": "u",
    "resourceVersion": "3",
    "ownerReferences": [
        {
            **{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": UID},
            "controller": True,
        }
    ],
}
"""Metadata of a pod of `job()`."""


def with_status(job: DDPJob, status: api.Status) -> DDPJob:
    """`job` as it is stored once `status` has been written."""
    return job.model_copy(update={"status": status})


def pod(rank: int, *, attempt: int = 0, **fields: Any) -> PodRecord:
    """A pod of `job()`: pending unless told otherwise."""
    name = names.pod_name("digits", attempt, rank)
    values: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resource_version": 20,
        "job": "digits",
        "owner_uid": UID,
        "attempt": attempt,
        "rank": rank,
        "spec_hash": "hash",
    }
    values |= fields
    return PodRecord(**{"uid_print": print_of(values["uid"]), **values})


STRANGERS = "of somebody else's"
"""`root` of a pod that the operator has not made."""


def decide(job: DDPJob, observed: Observed, now: float) -> decision.Decision:
    """The decision about `job`. The operator has made its pods, but for those with a `root`."""

    def prove(pod: PodRecord) -> PodRecord:
        own = proofs(observed.key, job.uid, pod.attempt, job.spec.nnodes)
        return replace(pod, root=pod.root or own.root)

    return core.decide(job, replace(observed, pods=tuple(map(prove, observed.pods))), now)


def running(rank: int, **fields: Any) -> PodRecord:
    """A pod whose trainer runs."""
    return pod(rank, running=True, ip=f"10.0.0.{rank + 1}", node="node-1", **fields)


def succeeded(rank: int, **fields: Any) -> PodRecord:
    """A pod that has ended well."""
    return pod(rank, **{"result": "succeeded", "ended": True, "exit_code": 0, **fields})


def failed(rank: int, message: str = "", **fields: Any) -> PodRecord:
    """A pod whose trainer has failed, with this termination message."""
    values = {
        "ended": True,
        "exit_code": 1,
        "reason": "Error",
        "finished_at": "2027-01-15T07:59:58Z",
    }
    return pod(rank, result="failed", message=message, **{**values, **fields})


def summary(**fields: Any) -> str:
    """An agent's summary as a termination message."""
    values = {"version": 1, "reason": "Exception", "exit_code": 1, "message": "ValueError: boom"}
    return json.dumps({**values, **fields})
