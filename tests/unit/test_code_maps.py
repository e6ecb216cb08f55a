"""ConfigMaps with code, where an API server answers with something else than the object."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddpjob.client import code_maps
from ddpjob.client.connection import Connection
from ddpjob.errors import Unavailable
from tests.builders import job_object

WHOLE = {"namespace": "team", "name": "digits", "uid": "u"}
OWNER = {"apiVersion": "ddpjob.dev/v1alpha1", "kind": "DDPJob", "name": "other", "uid": "o"}
MAP: dict[str, Any] = {"metadata": {"name": "part"}, "binaryData": {"code.tar.gz": "AA=="}}


class Server(ThreadingHTTPServer):
    """A server that has one object, which is its answer to each request but a creation."""

    answer: Any = None


class Handler(BaseHTTPRequestHandler):
    """Answers a request."""

    server: Server

    def do_GET(self) -> None:
        """Answer with the object."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps(self.server.answer).encode()
        self.send_response(409 if self.command == "POST" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PATCH = do_GET

    def do_POST(self) -> None:
        """Say that the object exists."""
        self.server.answer = {**self.server.answer, "reason": "AlreadyExists"}
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def connection(server: Server, tmp_path: Path) -> Iterator[Connection]:
    cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "ana"}}],
        "users": [{"name": "ana", "user": {"token": "t"}}],
        "current-context": "one",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    with closing(Connection("team", kubeconfig=tmp_path / "config")) as made:
        yield made


def job(metadata: Any) -> dict[str, Any]:
    return {**job_object(code={"configMaps": ["part"]}), "metadata": metadata}


def without(field: str) -> dict[str, Any]:
    return {name: text for name, text in WHOLE.items() if name != field}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        (None, "namespace"),
        ([], "namespace"),
        ({}, "namespace"),
        (without("name"), "name"),
        (without("uid"), "uid"),
        ({**WHOLE, "uid": 5}, "uid"),
    ],
)
def test_a_job_that_is_none_owns_nothing(
    connection: Connection, server: Server, metadata: Any, field: str
) -> None:
    server.answer = {**MAP, "metadata": {**WHOLE, "ownerReferences": [OWNER]}}
    words = f"the answer is no DDPJob: no metadata.{field}"
    with pytest.raises(Unavailable, match=words) as garbled:
        code_maps.adopt(connection, job(metadata))
    assert (garbled.value.code, garbled.value.reason) == (200, "Garbled")
    with pytest.raises(Unavailable, match=words):
        code_maps.provide(connection, job(metadata), [MAP])
    with pytest.raises(Unavailable, match=words):
        code_maps.provide(connection, {} if metadata is None else job(metadata), [MAP])


@pytest.mark.parametrize("field", WHOLE)
def test_a_config_map_that_is_none_is_not_joined(
    connection: Connection, server: Server, field: str
) -> None:
    server.answer = {**MAP, "metadata": {**without(field), "ownerReferences": [OWNER]}}
    words = f"the answer is no ConfigMap: no metadata.{field}"
    with pytest.raises(Unavailable, match=words):
        code_maps.adopt(connection, job(WHOLE))
    with pytest.raises(Unavailable, match=words):
        code_maps.provide(connection, job(WHOLE), [MAP])


def test_owners_that_are_none_are_nobody(connection: Connection, server: Server) -> None:
    server.answer = {**MAP, "metadata": {**WHOLE, "ownerReferences": 5}}
    code_maps.adopt(connection, job(WHOLE))
    code_maps.provide(connection, job(WHOLE), [MAP])
