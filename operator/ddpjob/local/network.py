"""Where local pods meet: a loopback address for each, a free port for each rendezvous."""

import errno
import hashlib
import socket
import sys
from collections.abc import Iterator

from ddpjob import names

LOOPBACK = "127.0.0.1"
# Below the range that Linux and macOS take outgoing ports from, or a connection could sit on one.
PORTS = range(20_000, 29_000)
TRIES = 1_000


class Loopback:
    """Hands out addresses and ports; the same key gets the same one again.

    Both are derived from the key, which holds the job's uid, so that two runners on one machine
    rarely meet, and tried by binding, in case they do. `many` is whether all of 127.0.0.0/8 is this
    machine, as on Linux.
    """

    def __init__(self, *, many: bool = sys.platform == "linux") -> None:
        self.many = many
        self._addresses: dict[str, str] = {}
        self._ports: dict[str, int] = {}

    def address(self, pod: str) -> str:
        """Return the pod's own address, or 127.0.0.1 if the machine has no other."""
        if not self.many:
            return LOOPBACK
        if pod not in self._addresses:
            self._addresses[pod] = next(
                address
                for address in map(_address, _numbers(pod))
                if address not in self._addresses.values() and _is_free(address, names.AGENT_PORT)
            )
        return self._addresses[pod]

    def agent_port(self, pod: str) -> int:
        """Return the port of the pod's agent. On a shared address each agent has its own."""
        return names.AGENT_PORT if self.many else self.port(f"{pod}/agent")

    def port(self, key: str) -> int:
        """Return a port that was free on all addresses, because torch's store listens on all."""
        if key not in self._ports:
            self._ports[key] = next(
                port
                for port in (PORTS[number % len(PORTS)] for number in _numbers(key))
                if port not in self._ports.values() and _is_free("", port)
            )
        return self._ports[key]


def _numbers(key: str) -> Iterator[int]:
    """Candidates that depend on `key` alone."""
    for turn in range(TRIES):
        yield int.from_bytes(hashlib.sha256(f"{key}/{turn}".encode()).digest()[:8])
    raise OSError(errno.EADDRINUSE, f"no free loopback address or port in {TRIES} tries", key)


def _address(number: int) -> str:
    """In 127.64.0.0/10: far from 127.0.0.1, 127.0.0.53 (systemd) and 127.0.1.1 (Debian)."""
    third, fourth = number >> 8 & 0xFF, number >> 16
    return f"127.{64 + number % 64}.{third}.{1 + fourth % 254}"


def _is_free(address: str, port: int) -> bool:
    dual = address == "" and socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as probe:
        if dual:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        return True
