"""What the agents of a job's pods answer at their port, which port-forward reaches."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from ddpjob import names
from ddpjob.client import stacks, why
from ddpjob.client.connection import Connection
from ddpjob.client.forward import Page, fetch
from ddpjob.client.logs import Pod, read_pod
from ddpjob.client.threads import in_parallel
from ddpjob.cluster import PODS
from ddpjob.errors import ClusterError, Forbidden, LoginFailed
from ddpjob.json_depth import Body
from ddpjob.text import printable

# Pods that are asked at the same time.
WORKERS = 16
# Pods that are asked at all. Each takes a connection of the API server's to a kubelet.
MAX_PODS = 512
NOT_ASKED = f"not asked: only the first {MAX_PODS} pods are"
# The last moment of a step that is believed, in Unix seconds: it is in the year 2286.
MAX_TIME = 1e10
# Characters of a problem that nobody has foreseen.
MAX_PROBLEM = 200


@dataclass(frozen=True)
class Answer:
    """What the agent of one pod has answered, or why it has not."""

    pod: Pod
    page: Page | None
    problem: str
    """Printable; empty with a page."""


@dataclass(frozen=True)
class NodeProgress:
    """How far one node is, by its own agent. None is what it does not know."""

    pod: Pod
    state: str = ""
    step: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    """Of all ranks together, where the script says it."""
    idle_seconds: float | None = None
    """Since the last step, by the pod's own clock."""
    problem: str = ""


def ask(
    connection: Connection, job: Body, path: str, *, node_rank: int | None = None
) -> list[Answer]:
    """Return the answers to a GET of `path` of all pods of the current attempt, by node rank.

    With `node_rank`, only that pod is asked; of all pods the first MAX_PODS are.
    Raises Forbidden without the right to `pods/portforward`, ClusterError or LoginFailed.
    """
    namespace = job["metadata"]["namespace"]
    pods = _pods(connection, job)
    if node_rank is not None:
        pods = [each for each in pods if each[0].node_rank == node_rank]

    def answer(found: tuple[Pod, int]) -> Answer:
        pod, port = found
        if pod.state != "running":
            return Answer(pod, None, f"its container is {pod.state}")
        try:
            page = fetch(connection, namespace, pod.name, port, path)
        except (Forbidden, LoginFailed):
            raise
        except ClusterError as error:
            return Answer(pod, None, error.message)
        except Exception as error:  # nobody has foreseen it, and the other pods answer all the same
            return Answer(pod, None, printable(f"{type(error).__name__}: {error}", MAX_PROBLEM))
        if page.status != 200:
            return Answer(pod, None, f"its agent has no {path} (HTTP {page.status})")
        return Answer(pod, page, "")

    found = in_parallel(answer, pods[:MAX_PODS], WORKERS)
    return found + [Answer(pod, None, NOT_ASKED) for pod, _ in pods[MAX_PODS:]]


def read_progress(answer: Answer) -> NodeProgress:
    """Return what an answer of /progress says. It may be anything."""
    if answer.page is None:
        return NodeProgress(answer.pod, problem=answer.problem)
    try:
        found = json.loads(answer.page.content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        return NodeProgress(answer.pod, problem="its agent has sent no JSON object")
    updated, now = _number(found, "updated_at"), _time(answer.page.date)
    is_time = updated is not None and 0 <= updated <= MAX_TIME
    idle = None if updated is None or now is None or not is_time else max(0.0, now - updated)
    return NodeProgress(
        answer.pod,
        state=why.text(found, "state", limit=32),
        step=why.number(found, "step"),
        loss=_number(found, "loss"),
        samples_per_second=_number(found, "samples_per_second"),
        idle_seconds=idle,
    )


def read_stacks(answers: Iterable[Answer], processes: int) -> dict[int, str]:
    """Return the stacks in answers of /stacks, by global rank, of `processes` ranks in each pod."""
    found: dict[int, str] = {}
    for answer in answers:
        if answer.page is not None:
            first = answer.pod.node_rank * processes
            text = answer.page.content.decode(errors="replace")
            found |= stacks.by_rank(text, range(first, first + processes))
    return found


def _pods(connection: Connection, job: Body) -> list[tuple[Pod, int]]:
    """Return the pods of the current attempt, and the ports of their agents."""
    metadata = job["metadata"]
    attempt = why.number(job, "status", "attempt") or 0

    def keep(body: Body) -> tuple[Pod, int] | None:
        pod = read_pod(body, metadata["name"], metadata["uid"])
        return (pod, _port(body)) if pod is not None and pod.attempt == attempt else None

    labels = f"{names.JOB_LABEL}={metadata['name']},{names.ATTEMPT_LABEL}={attempt}"
    found = connection.list(PODS, namespace=metadata["namespace"], labels=labels, keep=keep)
    return sorted(found.items, key=lambda each: each[0].node_rank)


def _port(pod: Body) -> int:
    """Return the port of a pod's agent: pods that share an address have it in an annotation."""
    text = why.text(pod, "metadata", "annotations", names.AGENT_PORT_ANNOTATION, limit=8)
    is_port = text.isascii() and text.isdigit() and 0 < int(text) < 2**16
    return int(text) if is_port else names.AGENT_PORT


def _number(found: Any, name: str) -> float | None:
    value = found.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 and not math.isnan(value) else None


def _time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
