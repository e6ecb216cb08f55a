"""Waits until node rank 0 has opened the group's store, before torchrun asks for it.

torch's TCPStore tries again 0.25 to 0.75 s after its first connection was refused (seen in torch
2.15). Where all nodes begin a round in the same moment, the first one is refused as often as not,
and the whole group would wait for it.

In the agent's zip, under the same rules: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import socket
import time
from typing import Any

# Longer than nodes that begin together are apart. Who is later is waited for by torchrun.
MOST_SECONDS = 3.0
# Between two connections of one node; those of all nodes together are so many a second at most.
PAUSE_SECONDS, MOST_PER_SECOND = 0.01, 5000


def wait_for_store(options: Any) -> None:
    """Wait for the store of a static rendezvous. `options`: torchrun's, parsed."""
    try:
        rank, nodes, port = int(options.node_rank), int(options.nnodes), int(options.master_port)
    except ValueError:  # a range of nodes, whose rendezvous is another
        return
    if options.rdzv_backend == "static" and rank > 0:
        wait_until_open(options.master_addr, port, max(PAUSE_SECONDS, nodes / MOST_PER_SECOND))


def wait_until_open(host: str, port: int, pause: float, seconds: float = MOST_SECONDS) -> None:
    """Connect until nobody refuses. Any other problem is torchrun's to tell."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return socket.create_connection((host, port), timeout=seconds).close()
        except ConnectionRefusedError:
            time.sleep(pause)
        except (OSError, UnicodeError):
            return
