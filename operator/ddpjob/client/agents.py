"""What the agents of a job's pods answer at their port.

They are reached through the API server, as `kubectl port-forward` does.
"""

import http.client
import json
import math
import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from ddpjob import names, why
from ddpjob.cluster import PODS
from ddpjob.cluster.answers import no_answer, refusal
from ddpjob.cluster.connection import Connection
from ddpjob.cluster.login import Login
from ddpjob.cluster.logs import Pod, read_pod, with_rank
from ddpjob.cluster.threads import Pipe
from ddpjob.errors import ClusterError, Forbidden, LoginFailed, Unavailable
from ddpjob.json_depth import Body
from ddpjob_agent.failures.stacks import Frame, frames

# Pods that are asked at the same time.
WORKERS = 16
# Without a byte of an answer. An agent takes 4 s for the stacks of a process that does not answer.
SECONDS = 15.0
MAX_BYTES = 2**20


@dataclass(frozen=True)
class Answer:
    """What the agent of one pod has answered, or why it has not."""

    pod: Pod
    content: bytes = b""
    """What it has sent, which may be anything."""
    date: str = ""
    """The pod's own time, as HTTP writes it; empty without one."""
    problem: str = ""
    """Printable; empty with an answer."""


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

    With `node_rank`, only that pod is asked.
    Raises Forbidden without the right to `pods/portforward`, ClusterError or LoginFailed.
    """
    pods = [each for each in _pods(connection, job) if node_rank in (None, each[0].node_rank)]
    pipe, found = Pipe[Answer](), list[Answer]()
    ask_one = partial(_ask, connection, job["metadata"]["namespace"], path)
    for first in range(min(WORKERS, len(pods))):
        pipe.read(partial(map, ask_one, pods[first::WORKERS]))
    try:
        while (answers := pipe.take()) is not None:
            found += answers
    finally:
        pipe.close()
    return sorted(found, key=lambda answer: answer.pod.node_rank)


def _ask(connection: Connection, namespace: str, path: str, place: tuple[Pod, int]) -> Answer:
    pod, port = place
    if pod.state != "running":
        return Answer(pod, problem=f"its container is {pod.state}")
    try:
        return Answer(pod, *fetch(connection, namespace, pod.name, port, path))
    except (Forbidden, LoginFailed):
        raise
    except ClusterError as error:
        return Answer(pod, problem=error.message)


def read_progress(answer: Answer) -> NodeProgress:
    """Return what an answer of /progress says. It may be anything."""
    if answer.problem:
        return NodeProgress(answer.pod, problem=answer.problem)
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        return NodeProgress(answer.pod, problem="its agent has sent no JSON object")
    updated, now = _number(found, "updated_at"), _time(answer.date)
    idle = None if updated is None or now is None else max(0.0, now - updated)
    return NodeProgress(
        answer.pod,
        state=why.text(found, "state", limit=32),
        step=why.number(found, "step"),
        loss=_number(found, "loss"),
        samples_per_second=_number(found, "samples_per_second"),
        idle_seconds=idle,
    )


def read_stacks(answers: Iterable[Answer], processes: int) -> dict[int, str]:
    """Return the stacks in answers of /stacks, by global rank, of `processes` ranks in each pod.

    Of the processes of a rank this is the first, which has started the others.
    """
    found: dict[int, str] = {}
    for answer in answers:
        first = answer.pod.node_rank * processes
        _, *parts = _TITLE.split(answer.content.decode(errors="replace"))
        for rank, part in zip(parts[::2], parts[1::2], strict=True):
            if rank and int(rank) in range(first, first + processes):
                found.setdefault(int(rank), part)
    return found


def _pods(connection: Connection, job: Body) -> list[tuple[Pod, int]]:
    """Return the pods of the current attempt that were made last, and their agents' ports."""
    metadata = job["metadata"]
    attempt = why.number(job, "status", "attempt") or 0

    def keep(body: Body) -> tuple[Pod, int] | None:
        pod = read_pod(body, metadata["name"], metadata["uid"])
        if pod is None or pod.attempt != attempt:
            return None
        return with_rank(pod, job), _port(body)

    labels = f"{names.JOB_LABEL}={metadata['name']},{names.ATTEMPT_LABEL}={attempt}"
    found = connection.list(PODS, namespace=metadata["namespace"], labels=labels, keep=keep)
    # One that has been replaced may be there for its log.
    latest = {pair[0].node_rank: pair for pair in sorted(found.items, key=lambda p: p[0].since)}
    return list(latest.values())


def _port(pod: Body) -> int:
    """Return the port of a pod's agent: pods that share an address have it in an annotation."""
    text = why.text(pod, "metadata", "annotations", names.AGENT_PORT_ANNOTATION, limit=8)
    return int(text) if text.isdecimal() else names.AGENT_PORT


def _number(found: Any, name: str) -> float | None:
    value = found.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 and not math.isnan(value) else None


def _time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def fetch(
    connection: Connection, namespace: str, pod: str, port: int, path: str
) -> tuple[bytes, str]:
    """Return what a GET of `path` finds at this port of a pod, and its `Date`. It may be anything.

    At most MAX_BYTES are read. Raises Forbidden without the right to `pods/portforward`, NotFound,
    Unavailable or LoginFailed.
    """
    tunnel = _open(connection.login, PODS.path(namespace, pod, "portforward"), port)
    request = http.client.HTTPConnection("localhost", port)
    request.sock = tunnel.socket(port)
    request.sock.settimeout(SECONDS)
    try:
        request.request("GET", path)
        answer = request.getresponse()
        if answer.status != http.HTTPStatus.OK:
            text = f"its agent has no {path} (HTTP {answer.status})"
            raise Unavailable(answer.status, "NoPage", text)
        return answer.read(MAX_BYTES), answer.headers.get("Date", "")
    except (OSError, ValueError, http.client.HTTPException) as error:
        words = tunnel.error(port) or str(error) or type(error).__name__
        raise Unavailable(0, "NoAnswer", f"{pod}: {words.strip()}") from None
    finally:
        tunnel.close()


def _open(login: Login, path: str, port: int) -> Any:
    """Return the library's tunnel to a port, which has a thread of its own."""
    import websocket  # kubernetes brings it
    from kubernetes.stream import ws_client

    library: Any = ws_client
    url = f"{login.server.replace('http', 'ws', 1)}{path}?ports={port}"
    # Not `stream.portforward`, whose errors do not say which status the server has answered.
    try:
        opened = library.create_websocket(login.configuration, url, login.headers())
    except websocket.WebSocketBadStatusException as error:
        raise refusal(error.status_code, error.resp_body or b"", login, path) from None
    except (websocket.WebSocketException, OSError) as error:
        raise no_answer(error, login) from error
    tunnel = library.PortForward(opened, [port])
    # If the pod ends first, the library's thread ends, and leaves the connection open.
    weakref.finalize(tunnel, opened.shutdown).atexit = False
    return tunnel


# The line before each process in an agent's answer, which begins the part about it.
_TITLE = re.compile(r"^(?=--- (?:rank (\d{1,9}) \()?pid \d+\)?: )", re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    """Innermost first; empty for ranks that do not answer."""
    state: str
    """Of ranks that do not answer: the state of their main thread."""
    differs: bool = False
    """Whether most ranks are elsewhere."""

    @property
    def place(self) -> str:
        """Return where these ranks are: the innermost frame, and who has called torch.

        `all_reduce (torch/distributed/c10d.py:2501), called by step (train.py:88)`.
        """
        if not self.frames:
            return f"no answer: {self.state}"
        own = next((frame for frame in self.frames if "/torch/" not in frame.file), None)
        called = f", called by {own}" if own and own != self.frames[0] else ""
        return f"{self.frames[0]}{called}"


def group(stacks: Mapping[int, str]) -> list[Group]:
    """Return the groups of ranks with equal stacks, the largest first.

    The others are marked, if one group is larger than each of them.
    """
    places: dict[tuple[tuple[Frame, ...], str], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        found = tuple(frames(text))
        state = "" if found else _state(text)
        places.setdefault((found, state), []).append(rank)
    order = sorted(places.items(), key=lambda item: (-len(item[1]), item[1]))
    most = [len(ranks) for _, ranks in order[:2]]
    is_clear = len(most) == 2 and most[0] > most[1]
    return [
        Group(tuple(ranks), place, state, differs=is_clear and number > 0)
        for number, ((place, state), ranks) in enumerate(order)
    ]


def _state(text: str) -> str:
    """Return the state of the main thread, as /proc has it: `state T (stopped)`."""
    found = re.search(r"^  [^\n]{0,64}: (state [^\n]{1,200})$", text, re.MULTILINE)
    return found[1] if found else "nothing is known"
