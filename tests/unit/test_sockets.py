"""WebSockets to the API server, which has the user's token, and nobody else has it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddpjob.client.login import Login, log_in
from ddpjob.client.sockets import open_socket
from ddpjob.errors import ClusterError, Refused, Unavailable

REFUSED = b"HTTP/1.1 403 no\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Gives each request the same answer, and keeps what was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.requests = answer, list[bytes]()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                other, _ = self._socket.accept()
            except OSError:
                return
            with other:
                text = b""
                while b"\r\n\r\n" not in text and (part := other.recv(4096)):
                    text += part
                self.requests.append(text)
                other.sendall(self.answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with ExitStack() as held:
        found = Server(b""), Server(REFUSED)
        for server in found:
            held.callback(server.close)
        yield found


def login(server: Server, folder: Path) -> Login:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://{server.address}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "MY-TOKEN"}}],
        "current-context": "c",
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return log_in(None, path)


@pytest.mark.parametrize("status", [302, 307])
def test_the_token_goes_to_nobody_to_whom_the_server_leads(
    servers: tuple[Server, Server], tmp_path: Path, status: int
) -> None:
    first, second = servers
    place = f"Location: ws://{second.address}/evil\r\nContent-Length: 0\r\n\r\n"
    first.answer = f"HTTP/1.1 {status} Found\r\n{place}".encode()
    with pytest.raises(Refused) as refused:
        open_socket(login(first, tmp_path), "/api/v1/x", [("ports", "29499")])
    assert refused.value.code == status
    assert [b"MY-TOKEN" in request for request in first.requests] == [True]
    assert second.requests == []


@pytest.mark.parametrize(("answer", "kind"), [(REFUSED, Refused), (b"", Unavailable)])
def test_what_opens_no_socket_is_an_error_of_ours(
    servers: tuple[Server, Server], tmp_path: Path, answer: bytes, kind: type[ClusterError]
) -> None:
    servers[0].answer = answer
    with pytest.raises(kind):
        open_socket(login(servers[0], tmp_path), "/api/v1/x", [])
