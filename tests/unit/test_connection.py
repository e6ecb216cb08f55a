"""Requests to a server that fails: which are sent again, and what their errors are."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ddpjob.cluster import PODS
from ddpjob.cluster.connection import Connection
from ddpjob.errors import Unavailable

PATH = "/api/v1/nodes"
UNAVAILABLE = (503, b"later", 5)
CUT = (200, b'{"kind": "L', 99)
FOUND = (200, b'{"kind": "NodeList"}', 20)


class Server(ThreadingHTTPServer):
    """Gives its answers one after the other: status, body, and the length that it says."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, int]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        status, body, length = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made
        made.shutdown()


@pytest.fixture
def connection(server: Server, tmp_path: Path) -> Iterator[Connection]:
    config = {
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    made = Connection("team", kubeconfig=path)
    yield made
    made.close()


def test_a_get_is_sent_again_and_another_request_is_not(
    server: Server, connection: Connection
) -> None:
    server.answers = [UNAVAILABLE, CUT, FOUND]
    assert connection.request("GET", PATH) == {"kind": "NodeList"}
    for answer, words in ((UNAVAILABLE, "later"), (CUT, "no answer from http://127.0.0.1")):
        server.answers = [answer, FOUND]
        with pytest.raises(Unavailable, match=words):
            connection.request("POST", PATH, {})
        assert server.answers == [FOUND]


def test_a_page_that_is_no_json_is_an_error(server: Server, connection: Connection) -> None:
    server.answers = [(200, b"<html>", 6)]
    with pytest.raises(Unavailable, match=f"GET {PATH}: the answer is no JSON"):
        connection.request("GET", PATH)


def test_an_event_that_was_cut_comes_again(server: Server, connection: Connection) -> None:
    meta = {"namespace": "team", "uid": "u", "resourceVersion": "6"}
    one, two = (
        json.dumps({"type": "ADDED", "object": {"metadata": {**meta, "name": name}}}).encode()
        for name in ("one", "two")
    )
    listed = b'{"items": [], "metadata": {"resourceVersion": "5"}}'
    texts = (listed, one + b"\n" + two[:-9], two + b"\n")
    server.answers = [(200, text, len(text)) for text in texts]
    events = connection.watch(PODS, namespace="team")
    assert [next(events).object["metadata"]["name"] for _ in range(2)] == ["one", "two"]
