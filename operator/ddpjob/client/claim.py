"""Keeps an archive of code in a claim, where it is too large for ConfigMaps.

A pod of the job's image mounts the claim, takes the archive over exec, and checks its SHA-256.
Then it is deleted.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob.client import receive, why
from ddpjob.client.answers import may_have_come
from ddpjob.client.connection import Connection
from ddpjob.client.generated import generated
from ddpjob.client.sockets import open_socket
from ddpjob.cluster import PODS
from ddpjob.errors import ClusterError, DDPJobError, Refused, Unavailable
from ddpjob.json_depth import Body
from ddpjob.text import printable

if TYPE_CHECKING:
    from ddpjob.client.code import CodeArchive

STDIN, STDOUT, STDERR, RESULT = 0, 1, 2, 3
FOLDER, CONTAINER = "/claim", "receive"
# Seconds until the pod must run: its image may have to be pulled. It ends by itself if this
# process dies.
START_SECONDS, LIFE_SECONDS = 600.0, 1800
# Seconds in which a part must go, and an answer come.
STEP_SECONDS = 120.0
PART_BYTES, MAX_WORDS = 64 * 1024, 4096
# As the operator's own pods have it, so that those can read the file.
_USER = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}


@dataclass(frozen=True)
class Claim:
    """A claim of a namespace, and the image with which it is written to."""

    name: str
    namespace: str
    image: str
    pull_secrets: tuple[str, ...] = ()


def path_of(archive: "CodeArchive") -> str:
    """Return the path of the archive in a claim, which is made of what is in it."""
    return f"ddpjob-code-{archive.sha256[:12]}.tar.gz"


def keep(
    connection: Connection, claim: Claim, archive: "CodeArchive", note: Callable[[str], None]
) -> None:
    """Write the archive into the claim, unless it is there. `note` is told what is waited for.

    Raises Forbidden, Unavailable or another ClusterError.
    """
    with _pod(connection, claim) as name:
        _wait(connection, claim.namespace, name, note)
        command = ["python3", "-c", Path(receive.__file__).read_text()]
        command += [f"{FOLDER}/{path_of(archive)}", str(len(archive.data)), archive.sha256]
        query = [("container", CONTAINER), *(("command", word) for word in command)]
        query += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        socket = open_socket(connection.login, PODS.path(claim.namespace, name, "exec"), query)
        try:
            _Stream(socket).send(archive.data)
        finally:
            socket.shutdown()


def pod(claim: Claim) -> Body:
    """Return the pod that takes an archive. It asks for as little as a pod may."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    amount = {"cpu": "200m", "memory": "256Mi"}
    container = {
        "name": CONTAINER,
        "image": claim.image,
        "command": ["python3", "-c", f"import time; time.sleep({LIFE_SECONDS})"],
        "resources": {"requests": amount, "limits": amount},
        "securityContext": security,
        "volumeMounts": [{"name": "claim", "mountPath": FOLDER}],
    }
    source = {"persistentVolumeClaim": {"claimName": claim.name}}
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": name} for name in claim.pull_secrets],
        "securityContext": {**_USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "claim", **source}],
    }
    metadata = {"namespace": claim.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextmanager
def _pod(connection: Connection, claim: Claim) -> Iterator[str]:
    """Yield the name of a pod that takes an archive, and delete it afterwards."""
    body = pod(claim)
    # Made here, so that it is known if the creation is interrupted; long, so no other pod has it.
    name = body["metadata"]["name"] = generated("ddpjob-code-", 12)
    try:
        connection.request("POST", PODS.path(claim.namespace), body)
    except BaseException as error:
        if may_have_come(error):
            _delete(connection, claim.namespace, name)
        raise
    try:
        yield name
    finally:
        _delete(connection, claim.namespace, name)


def _delete(connection: Connection, namespace: str, name: str) -> None:
    """Delete the pod, also after the connection was closed."""
    other = connection.outliving()
    with suppress(DDPJobError):  # then it ends by its deadline
        other.request("DELETE", PODS.path(namespace, name), {"gracePeriodSeconds": 0})
    other.close()


def _wait(connection: Connection, namespace: str, name: str, note: Callable[[str], None]) -> None:
    """Return once the pod runs. Raises Unavailable if it does not."""
    deadline, told = time.monotonic() + START_SECONDS, ""
    while True:
        found = connection.get(PODS, name, namespace=namespace)
        phase, words = why.text(found, "status", "phase"), _reason(found)
        if phase == "Running":
            return
        if phase in ("Failed", "Succeeded") or time.monotonic() > deadline:
            text = f"pod {name}, which is to write the code into the claim, does not run: {words}"
            raise Unavailable(0, "NotRunning", text)
        if words and words != told:
            note(words)
            told = words
        time.sleep(1.0)


def _reason(found: Body) -> str:
    """Return why a pod does not run, in the scheduler's or the kubelet's words."""
    statuses = why.part(found, "status", "containerStatuses")
    waiting = why.part(statuses[0], "state", "waiting") if statuses else None
    condition = why.condition(found.get("status"), "PodScheduled")
    for body in (waiting, condition if condition.get("status") == "False" else None):
        words = [why.text(body, "reason"), why.text(body, "message")]
        if any(words):
            return ": ".join(filter(None, words))
    return why.text(found, "status", "phase")


class _Stream:
    """The streams of `receive.py`."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._texts = {STDOUT: b"", STDERR: b"", RESULT: b""}
        socket.settimeout(STEP_SECONDS)

    def send(self, content: bytes) -> None:
        """Send what the pod does not have yet. Raises Unavailable or Refused."""
        if self._word() == "have":
            return
        import websocket

        view = memoryview(content)
        try:
            for at in range(0, len(content), PART_BYTES):
                self._socket.send_binary(bytes([STDIN]) + view[at : at + PART_BYTES])
        except (websocket.WebSocketException, OSError):
            pass  # what the pod says of it follows
        self._texts[STDOUT] = b""
        self._word()

    def _word(self) -> str:
        """Return the next word that the pod says. Raises Unavailable if it ends instead."""
        import websocket

        while b"\n" not in self._texts[STDOUT]:
            try:
                code, message = self._socket.recv_data()
            except (websocket.WebSocketException, OSError):
                break
            if code == websocket.ABNF.OPCODE_CLOSE:
                break
            channel = message[0] if message else -1
            if channel in self._texts:
                self._texts[channel] = (self._texts[channel] + message[1:])[-MAX_WORDS:]
            if channel == RESULT:
                break
        word = self._texts[STDOUT].partition(b"\n")[0].decode(errors="replace")
        if word not in ("have", "send", "kept"):
            raise self._problem()
        return word

    def _problem(self) -> ClusterError:
        words = self._texts[STDERR].decode(errors="replace").strip().rpartition("\n")[2]
        text = printable(words or _result(self._texts[RESULT]) or "the connection was cut", 512)
        kind = Refused if words else Unavailable
        return kind(0, "NotKept", f"the code is not in the claim: {text}")


def _result(content: bytes) -> str:
    """Return what a kubelet says of a command that it could not run."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    return why.text(found, "message") if isinstance(found, Mapping) else ""
