"""Jobs and pods for tests, a line each."""

import json
from dataclasses import replace
from typing import Any

from ddpjob import api, names
from ddpjob.api import DDPJob, Failure, FailurePolicy, Status
from ddpjob.controller.memory import JobRecord, job_record
from ddpjob.plan import decide as core
from ddpjob.plan import model
from ddpjob.plan.model import NodeExit, Observed, PodRecord, Report, RoundStatus
from ddpjob.plan.own import print_of, proofs
from ddpjob.plan.podrecord import pod_record
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.times import timestamp

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
STARTED = "2027-01-15T07:55:00Z"  # 300 s before NOW
UID = "11111111-2222-3333-4444-555555555555"
JOB_YAML = """\
apiVersion: ddpjob.dev/v1alpha1
kind: DDPJob
metadata:
  name: digits
spec:
  image: ddpjob/trainer:0.1.0
  args: [train.py]
"""


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


RECREATE: dict[str, Any] = {"failurePolicy": {"restartStrategy": "Recreate"}}
"""A spec by which all pods are made anew where one is lost."""
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


def pod(rank: int, *, attempt: int = 0, since: int = 0, **fields: Any) -> PodRecord:
    """A pod of `job()`: pending unless told otherwise."""
    name = names.pod_name("digits", attempt, rank, since)
    values: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resource_version": 20,
        "job": "digits",
        "owner_uid": UID,
        "attempt": attempt,
        "rank": rank,
        "since": since,
        "spec_hash": "hash",
    }
    values |= fields
    return PodRecord(**{"uid_print": print_of(values["uid"]), **values})


STRANGERS = "of somebody else's"
"""`root` of a pod that the operator has not made."""


def decide(job: DDPJob, observed: Observed, now: float) -> model.Decision:
    """The decision about `job`. The operator has made its pods, but for those with a `root`."""

    def prove(pod: PodRecord) -> PodRecord:
        own = proofs(observed.key, job.uid, pod.attempt, pod.since, job.spec.nnodes)
        return replace(pod, root=pod.root or own.root)

    return core.decide(job, replace(observed, pods=tuple(map(prove, observed.pods))), now)


def see(*pods: PodRecord, **fields: object) -> Observed:
    """All there is: what is not among these pods is gone."""
    values = {"children_ready": True, "spec_hash": "hash", "confirmed": True, **fields}
    return Observed(pods=pods, **values)  # type: ignore[arg-type]


def edited(job: DDPJob, **spec: Any) -> DDPJob:
    """The job once somebody has changed these fields of its spec, by their names in Python."""
    return job.model_copy(update={"spec": job.spec.model_copy(update=spec)})


def write(job: DDPJob, *pods: PodRecord, now: float = NOW, **fields: object) -> DDPJob:
    """The job once the status of the decision about it is stored."""
    return with_status(job, decide(job, see(*pods, **fields), now).status)


def started(*pods: PodRecord, **spec: Any) -> DDPJob:
    """A job whose pods have all been created."""
    return write(write(job(**spec)), *(pods or (pod(0), pod(1))))


def whole(**spec: Any) -> DDPJob:
    """A job both of whose nodes run."""
    return write(started(**spec), running(0), running(1))


def resumed() -> DDPJob:
    """A job that is resumed 20 s before NOW, after two days, and whose node 1 pulls its image."""
    pods, then = (running(0), running(1)), NOW - 2 * 86400
    ours = write(write(write(job(), now=then), now=then), *pods, now=then)
    ours = with_status(job(suspend=True), ours.status)
    for left in (pods, (), ()):
        ours = write(ours, *left, now=then)
    ours = write(with_status(job(), ours.status), now=NOW - 20)
    waits: dict[str, Any] = {
        "reason": "Pulling",
        "message": "image reg/x",
        "started_at": timestamp(NOW - 15),
    }
    return write(ours, pod(0, attempt=1), pod(1, attempt=1, node="gpu-3", **waits))


def long_running(**spec: Any) -> DDPJob:
    """A job that has run since STARTED."""
    ours = started(running(0), running(1), **spec)
    goodput = ours.status.goodput.model_copy(update={"since": STARTED})
    return with_status(
        ours, ours.status.model_copy(update={"state": "Running", "goodput": goodput})
    )


def in_attempt(attempt: int, **status: Any) -> DDPJob:
    """A job both of whose nodes run in this attempt."""
    nodes = {"desired": 2, "running": 2}
    return job(status={"state": "Running", "attempt": attempt, "nodes": nodes, **status})


def deleted(decision: model.Decision) -> set[str]:
    """The names of the pods that the decision deletes."""
    return {deletion.pod.name for deletion in decision.delete}


def condition(status: Status, kind: str) -> tuple[str, str] | None:
    """(status, reason) of the condition, None where there is none."""
    found = status.condition(kind)
    return (found.status, found.reason) if found else None


def reports(step: int, attempt: int = 0, source: str = "file", round: int = 0) -> Report:
    """Rank 0's report of a step."""
    return Report(attempt=attempt, step=step, source=source, round=round)  # type: ignore[arg-type]


def told(*failures: NodeExit, round: int = 0, attempt: int = 0) -> RoundStatus:
    """The report of rank 0's agent: all ranks have been started, and these nodes' have failed."""
    return RoundStatus(attempt=attempt, round=round, running=True, exits=failures)


def reported(rank: int, *, exit_code: int = 1, **fields: Any) -> NodeExit:
    """A node whose ranks have failed, and whose agent waits to be asked on."""
    return NodeExit(rank, exit_code, summary(**{"rank": rank, "exit_code": exit_code, **fields}))


def failure_policy(*rules: dict[str, Any]) -> FailurePolicy:
    """The failure policy with these rules."""
    return job(failurePolicy={"rules": list(rules)}).spec.failure_policy


def failure(reason: str = "Exception", **fields: Any) -> Failure:
    """A failure of the first attempt, as the status has it."""
    return Failure(**{"attempt": 0, "reason": reason, "message": "ValueError: boom", **fields})


def made_pod(job: DDPJob, rank: int = 0, policy: Policy | None = None) -> dict[str, Any]:
    """The pod that is created for a rank."""
    pods = render.pods(job, render.Agent(b"agent"), policy or Policy())
    body: dict[str, Any] = json.loads(pods.body(rank))
    return body


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    """The container that trains."""
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
    return found


def record_of_job(job: DDPJob) -> JobRecord:
    """What the operator's cache keeps of a job."""
    return job_record(job.model_dump(by_alias=True, mode="json", exclude_none=True))


def record_of(status: dict[str, Any], **metadata: Any) -> PodRecord:
    """The record of a pod of `job()` with this status."""
    found = pod_record({"metadata": {**IDENTITY, **metadata}, "status": status})
    assert found is not None
    return found


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
