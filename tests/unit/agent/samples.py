"""What processes of real jobs left behind, for the agent to judge."""

import contextlib
import http.client
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddpjob_agent.config import Config
from tests import agentpod

# Type and text of exceptions that only say that another rank has gone. They were written by real
# jobs on torch 2.15, gloo, unless marked.


GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5"
PEER_ENDS = [
    ("RuntimeError", GLOO + "61] Connection closed by peer [127.0.0.1]:42154. This is typically"),
    ("RuntimeError", GLOO + "45] Read error [127.0.0.1]:49068: Connection reset by peer. This is"),
    (
        "RuntimeError",
        GLOO[:-14] + "unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation",
    ),
    ("RuntimeError", "Application timeout caused pair closure"),
    (
        "DistNetworkError",
        "Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?",
    ),
    ("DistNetworkError", "Broken pipe"),
    ("DistStoreError", "wait timeout after 2000ms, keys: /k"),
    ("DistStoreError", "Timed out after 4 seconds waiting for clients. 1/2 clients joined."),
    # From reports; no GPU was at hand.
    (
        "DistBackendError",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:254, remote process exited or "
        "there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly",
    ),
    (
        "DistBackendError",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    ),
]


SPAWN = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 9, in main
    raise mine.Trouble("boom")
mine.Trouble: boom
"""


def config(folder: Path, **changes: str) -> Config:
    values = agentpod.environment(folder, "127.0.0.1")
    return Config(values | changes)


def worker(rank: int, code: int, at: float) -> dict[str, Any]:
    return {"pid": 100 + rank, "rank": rank, "local_rank": rank, "exitcode": code, "ended_at": at}


def error(rank: int, kind: str, text: str, at: float) -> dict[str, Any]:
    return {"pid": 100 + rank, "rank": rank, "type": kind, "message": text, "time": at}


def until(holds: Callable[[], object]) -> None:
    """Wait for something that other threads do."""
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask(
    ours: Config,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    host: str = "127.0.0.1",
) -> tuple[int, bytes]:
    """The status and the text of an answer of this agent."""
    connection = http.client.HTTPConnection(host, ours.agent_port, timeout=200)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
