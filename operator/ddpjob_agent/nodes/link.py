"""How another node is in touch with node rank 0, whose agent speaks for the group."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Callable  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config
from ddpjob_agent.nodes.group import DEAD, HOLD_SECONDS, OTHER_POD, RUNNING, Node, Order, print_of
from ddpjob_agent.nodes.reading import read_order, read_place
from ddpjob_agent.program import PROGRAM_BYTES
from ddpjob_agent.records import compact, load

# After a request that failed, the next one waits so long.
AGAIN_SECONDS = 0.2
# Without an answer for so long, rank 0's agent counts as gone.
GONE_SECONDS = 5.0
# A connection that does not come in this time is begun anew: perhaps there is another rank 0.
CONNECT_SECONDS = 2.0
# For the last words of a pod that ends.
PART_SECONDS = 1.0


class Link(threading.Thread):
    """A request to rank 0's agent is always under way, held until there is news.

    It is asked as rank 0's own `Group` is.
    """

    def __init__(self, config: Config, token: str, host: str, on_order: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="link")
        self.config, self.token, self.host, self.on_order = config, token, host, on_order
        self.order = Order()
        self.heard_at = -math.inf  # monotonic
        self.lock = threading.Lock()
        self.node = Node(0, RUNNING)
        self.news = threading.Event()
        self.pod = print_of(config.pod_uid)
        self.is_out = False  # rank 0's agent knows of another pod in the place of this one
        self.place: tuple[int, int] | None = None  # the rank that a spare has got, and its round
        self.is_over = False
        self.connection: socket.socket | None = None
        # If rank 0's agent never was, it may be out of reach. A pod in the place of another waits,
        # and a kept one, whose ranks may end before that agent is there.
        self.was_heard = config.joins_others or config.keep_seconds > 0

    def move(self, host: str) -> None:
        """Ask another agent from now on: that of the pod that has become rank 0's."""
        with self.lock:
            self.host = host
            self.take_back()

    def take_back(self) -> None:
        """Have the request that is under way made again."""
        self.news.set()
        if self.connection is not None:
            self.heard_at = time.monotonic()  # until there is another connection
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def tell(self, rank: int, node: Node) -> None:
        """Tell the group of this node; the request that is under way is taken back for it."""
        with self.lock:
            self.node = node
            self.take_back()
        if not self.is_alive():  # only now, as the launcher must be the first to ask for the name
            self.heard_at = time.monotonic()
            self.start()

    def part(self) -> threading.Thread:
        """Tell rank 0's agent that nothing of this pod lives; the thread that does so."""

        def post() -> None:
            body = compact({"pod": self.pod, "state": DEAD})
            address, token = (self.host, self.config.agent_port), f"Bearer {self.token}"
            with contextlib.suppress(OSError, HTTPException):
                connection = HTTPConnection(*address, timeout=PART_SECONDS)
                with contextlib.closing(connection) as asks:
                    asks.request("POST", "/member", body, {"Authorization": token})
                    asks.getresponse().read()

        thread = threading.Thread(target=post, daemon=True, name="part")
        thread.start()
        return thread

    def get_program(self, wanted: str) -> bytes:
        """The program with this print, of rank 0's agent; nothing where that has it not."""
        address, token = (self.host, self.config.agent_port), f"Bearer {self.token}"
        with contextlib.suppress(OSError, HTTPException):
            connection = HTTPConnection(*address, timeout=GONE_SECONDS)
            with contextlib.closing(connection) as asks:
                asks.request("GET", f"/program?{wanted}", headers={"Authorization": token})
                answer = asks.getresponse()
                if answer.status == 200 and (answer.length or 0) <= PROGRAM_BYTES:
                    return answer.read()
        return b""

    def is_heard(self) -> bool:
        """Whether rank 0's agent holds a request, or has answered or held one lately."""
        with self.lock:
            lately = time.monotonic() - self.heard_at < GONE_SECONDS
            return lately or self.connection is not None

    def run(self) -> None:
        """Ask until the process ends, or is rank 0's own."""
        while not self.is_over:
            self.news.clear()
            pause = AGAIN_SECONDS
            with contextlib.suppress(OSError, ValueError, HTTPException):
                order, place, pause = self.ask()
                if (order, place) != (self.order, self.place):
                    self.order, self.place = order, place
                    self.on_order()
            if pause:
                self.news.wait(pause)

    def ask(self) -> tuple[Order, tuple[int, int] | None, float]:
        """One request, and its answer. Raises OSError, HTTPException or ValueError."""
        with self.lock:
            node, host = self.node, self.host
        body = {
            "attempt": self.config.attempt,
            "node_rank": self.config.node_rank,
            "pod": self.pod,
            **({"spare": True} if self.config.is_spare else {}),
            "round": node.round,
            "state": node.state,
            "failure": node.failure,
            **({"program": node.program} if node.program else {}),
            "known": vars(self.order),
        }
        address = host, self.config.agent_port
        with contextlib.closing(HTTPConnection(*address, timeout=CONNECT_SECONDS)) as asks:
            asks.connect()
            connection = asks.sock
            with self.lock:
                if (self.node, self.host) != (node, host):
                    return self.order, self.place, 0.0  # and ask again, with the news
                self.connection, self.was_heard = connection, True
            is_there = True
            try:
                connection.settimeout(HOLD_SECONDS + GONE_SECONDS)
                token = {"Authorization": f"Bearer {self.token}"}
                asks.request("POST", "/member", compact(body), token)
                answer = asks.getresponse()
                self.is_out = answer.status == OTHER_POD
                if self.is_out:
                    self.on_order()
                if answer.status != 200:
                    raise ValueError("no answer")
                found = load(answer.read(4096))
                order, pause = read_order(found)
                return order, read_place(found, self.config.nnodes), pause
            except ConnectionError:  # taken back, or lost
                raise
            except (ValueError, HTTPException, socket.timeout):  # noqa: UP041 - Python 3.8
                is_there = False  # it refuses the request, or is silent
                raise
            finally:
                with self.lock:
                    self.connection = None
                    if is_there:
                        self.heard_at = time.monotonic()
