"""Stands before a real API server, and answers for the kubelets, which it has none of: their logs.

All other requests go on to the API server, watches too. So a client's whole way is real HTTP.
"""

import http.client
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from ddpjob import names
from ddpjob.times import unix_seconds
from tests.cluster.apiserver import ApiServer
from tests.kubeletlog import BILLION, Chunk, render

LOG = re.compile(r"/api/v1/namespaces/[^/]+/pods/([^/]+)/log")


class PodLog:
    """The log of one container, which grows. `cuts` are bytes after which a stream breaks off."""

    def __init__(self, cuts: Sequence[int] = ()) -> None:
        self.chunks: list[Chunk] = []
        self.begin = 0
        """The chunks before it have been rotated away."""
        self.cuts = list(cuts)
        self.cuts_look_like_ends = False
        """As where a server between loses the kubelet."""
        self.refusal: tuple[int, str] | None = None
        """Code and message of what is answered instead of the log."""
        self.requests: list[dict[str, str]] = []
        self.changed = threading.Condition()
        self.ended = False

    def write(self, *texts: bytes, time_ns: int | None = None) -> None:
        """Write lines, now or at a time."""
        with self.changed:
            stamp = time.time_ns() if time_ns is None else time_ns
            self.chunks += [Chunk(stamp + number, text) for number, text in enumerate(texts)]
            self.changed.notify_all()

    def end(self) -> None:
        """The container exits."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Proxy:
    """The server, as a context manager."""

    def __init__(self, server: ApiServer) -> None:
        self.api, self.logs = server, dict[str, PodLog]()
        """By the pod's name; of another container than the trainer by `POD/CONTAINER`."""
        self.down = False
        """Whether all requests are refused for now."""
        self.held: str | None = None
        """Requests whose answer is held back, a regular expression: `POST .*/ddpjobs`."""
        self.holds, self.goes_on = threading.Event(), threading.Event()
        """Whether one is held back, and whether it may go on. One that is cut never does."""
        self.cuts = False
        self.is_slow = False
        """Whether what is held back has not come to the API server before it goes on."""
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.context = ssl.create_default_context(cafile=server.ca_file)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for log in self.logs.values():
            log.end()
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        found = LOG.fullmatch(parts.path)
        if self.owner.down:
            self.close_connection = True
        elif found and (log := self._found(found[1], query := dict(parse_qsl(parts.query)))):
            self._log(log, query)
        else:
            self._pass_on()

    def _found(self, pod: str, query: dict[str, str]) -> PodLog | None:
        container = query["container"]
        is_trainer = container == names.TRAINER_CONTAINER
        return self.owner.logs.get(pod if is_trainer else f"{pod}/{container}")

    def _pass_on(self) -> None:
        """Ask the API server, and hand on what it answers as it comes."""
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        host = urlsplit(self.owner.api.url).netloc
        upstream = http.client.HTTPSConnection(host, context=self.owner.context, timeout=200)
        kept = ("Authorization", "Accept", "Content-Type")
        headers = {name: self.headers[name] for name in kept if name in self.headers}
        try:
            is_slow = self.owner.is_slow
            if is_slow and self._is_cut():
                self.close_connection = True
                return
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            if not is_slow and self._is_cut():
                self.close_connection = True
                return
            self._begin(answer.status, answer.headers.get("Content-Type", ""))
            while part := answer.read1(65536):
                self._chunk(part)
            self._chunk(b"")
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            upstream.close()

    def _is_cut(self) -> bool:
        """Hold the answer back where that is wanted, and return whether it is given at all."""
        owner = self.owner
        if owner.held is None or not re.match(owner.held, f"{self.command} {self.path}"):
            return False
        owner.holds.set()
        if not owner.cuts:
            owner.goes_on.wait(60)
        return owner.cuts

    do_POST = do_PATCH = do_PUT = do_DELETE = _pass_on

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.flush()

    def _log(self, log: PodLog, query: dict[str, str]) -> None:
        """Answer as a kubelet does, or break off."""
        with log.changed:
            log.requests.append(query)
            left = log.cuts.pop(0) if log.cuts else None
        if log.refusal:
            code, message = log.refusal
            self._begin(code, "application/json")
            status = {"kind": "Status", "status": "Failure", "code": code, "message": message}
            self._chunk(json.dumps(status).encode())
            return self._chunk(b"")
        self._begin(200, "text/plain")
        since = unix_seconds(query.get("sinceTime"))
        tail = int(query["tailLines"]) if "tailLines" in query else None
        at = 0
        try:
            while True:
                with log.changed:
                    at = max(at, log.begin)
                    new, at = log.chunks[at:], len(log.chunks)
                    ended = log.ended or query.get("follow") != "true"
                    if not new and not ended:
                        log.changed.wait(1.0)
                        continue
                part = render(new, None if since is None else int(since), tail)
                tail = None
                sent = part if left is None else part[:left]
                if sent:
                    self._chunk(sent)
                if left is not None:
                    left -= len(sent)
                    if left <= 0 and log.cuts_look_like_ends:
                        return self._chunk(b"")
                    if left <= 0:
                        self.close_connection = True
                        return
                if ended:
                    self._chunk(b"")
                    return
        except OSError:
            self.close_connection = True


def random_cuts(seed: int, count: int, most: int) -> list[int]:
    """So many places to break off, in bytes of a stream."""
    draw = random.Random(seed)
    return [draw.randrange(most) for _ in range(count)]


def seconds(number: float) -> int:
    """A time, so many seconds after a fixed one, in nanoseconds."""
    return 1_700_000_000 * BILLION + int(number * BILLION)
