"""Local pods get addresses and ports that nobody else has."""

import errno
import ipaddress
import socket
import sys

import pytest

from ddpjob.local.network import LOOPBACK, PORTS, Loopback
from ddpjob.names import AGENT_PORT


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.0/8 is this machine on Linux only")
def test_each_pod_has_an_address_of_its_own_and_keeps_it() -> None:
    loopback = Loopback()
    addresses = [loopback.address(f"uid/0/{rank}") for rank in range(200)]
    assert len(set(addresses)) == 200
    assert all(ipaddress.ip_address(a) in ipaddress.ip_network("127.64.0.0/10") for a in addresses)
    assert loopback.address("uid/0/7") == addresses[7] == Loopback().address("uid/0/7")
    assert loopback.agent_port("uid/0/7") == AGENT_PORT


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.0/8 is this machine on Linux only")
def test_an_address_whose_agent_port_is_taken_is_passed_over() -> None:
    wanted = Loopback().address("uid/0/0")
    with socket.create_server((wanted, AGENT_PORT)):
        assert Loopback().address("uid/0/0") != wanted


@pytest.mark.parametrize("address", ["", LOOPBACK])
def test_a_port_that_anybody_listens_on_is_passed_over(address: str) -> None:
    wanted = Loopback().port("uid/0")
    with socket.create_server((address, wanted)):
        other = Loopback().port("uid/0")
    assert other != wanted and {other, wanted} <= set(PORTS)


def test_each_attempt_has_a_port_of_its_own() -> None:
    loopback = Loopback()
    ports = [loopback.port(f"uid/{attempt}") for attempt in range(100)]
    assert len(set(ports)) == 100 and loopback.port("uid/3") == ports[3]


def test_on_one_address_each_agent_has_a_port_of_its_own() -> None:
    loopback = Loopback(many=False)
    assert loopback.address("a") == loopback.address("b") == LOOPBACK
    assert loopback.agent_port("a") != loopback.agent_port("b")


def test_other_trouble_than_a_taken_port_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob.local.network.PORTS", range(70_000, 70_001))
    with pytest.raises((OSError, OverflowError)) as raised:
        Loopback().port("uid/0")
    assert getattr(raised.value, "errno", None) != errno.EADDRINUSE
