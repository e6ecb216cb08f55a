"""Requests to the API server, lists, and watches that survive what ends a watch.

The import of `kubernetes` waits for the first request. Every error is one of `ddpjob.errors`.
"""

import json
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ddpjob.cluster import Keep, Listing, Resource, WatchEvent, kept
from ddpjob.cluster.answers import no_answer, refusal
from ddpjob.cluster.login import Login, log_in
from ddpjob.cluster.watching import Seen, read_event
from ddpjob.errors import ClusterError, Expired, Unavailable
from ddpjob.json_depth import Body, read_json

# The reason of an Unavailable when the connection was closed.
CLOSED = "Closed"
MERGE = "application/merge-patch+json"
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
# A watch ends after so long and goes on at once. So a dead connection is found in this time.
WATCH_SECONDS = 60.0
# Tries of a GET: a server may be starting or overloaded, and a kept connection may be closed.
TRIES = 4
# Seconds between two tries. They double.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
# Objects of a page, as for kubectl.
PAGE = 500

Query = Mapping[str, str | int]


class Connection:
    """A login, and requests with it. Threads may share it.

    `namespace` is None for that of the context. `note` is called with a line for people when
    something takes longer because the server does not answer.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._namespace, self._context, self._kubeconfig = namespace, context, kubeconfig
        self.note = note
        self.connect_seconds = CONNECT_SECONDS
        self._log_in = cache(partial(log_in, context, kubeconfig))
        self._shares_login = False
        self._begin()

    def _begin(self) -> None:
        self._closed = threading.Event()
        self._answers: set[Any] = set()  # answers that are being read
        self._parts = weakref.WeakSet[Connection]()

    @property
    def login(self) -> Login:
        """Return the login, which is made when it is first needed. Raises LoginFailed."""
        return self._log_in()

    @property
    def namespace(self) -> str:
        """Return the namespace that was asked for, or that of the context."""
        return self._namespace or self.login.namespace

    @cached_property
    def user(self) -> str:
        """Return the user's name as the API server has it, else as the kubeconfig has it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        with suppress(ClusterError):  # before Kubernetes 1.28; or no right
            return str(self.request("POST", path, body)["status"]["userInfo"]["username"])
        return self.login.user

    @property
    def expression(self) -> str:
        """Return Python's text for a client like this one: `Client('team-a')`."""
        named = {"context": self._context, "kubeconfig": self._kubeconfig}
        texts = [f"{name}={str(value)!r}" for name, value in named.items() if value is not None]
        return f"Client({', '.join([repr(self.namespace), *texts])})"

    def apart(self) -> "Connection":
        """Return a connection with the same login that can be closed by itself.

        It is closed with this one too. Raises Unavailable if this one is closed.
        """
        self._check_open()
        other = self.outliving()
        self._parts.add(other)
        return other

    def outliving(self) -> "Connection":
        """Return a connection with the same login that goes on when this one is closed.

        For what has to be undone then. Whoever asks for it closes it.
        """
        other = copy(self)
        other._shares_login = True
        other._begin()
        return other

    def close(self) -> None:
        """End what is being read, in other threads too, and allow no more requests.

        They raise Unavailable with the reason `Closed`. Connections that are kept open are closed.
        """
        self._closed.set()
        for part in list(self._parts):
            part.close()
        for answer in list(self._answers):
            # A thread that is blocked in a read does not notice that a socket is closed.
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                answer.shutdown()
        if not self._shares_login and self._log_in.cache_info().currsize:
            self.login.pool.clear()

    def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Body:
        """Return one object, by default of the connection's namespace. Raises ClusterError."""
        return self.request("GET", resource.path(namespace or self.namespace, name))

    def request(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Query | None = None,
        content_type: str = "application/json",
    ) -> Body:
        """Return the object in the answer to one request. Raises ClusterError or LoginFailed."""
        from urllib3.util.retry import Retry

        retries = Retry(
            TRIES - 1,
            connect=0,
            allowed_methods=("GET",),
            status_forcelist=range(500, 600),  # and 429, with the pause that the server asks for
            backoff_factor=FIRST_PAUSE,
            raise_on_status=False,
        )
        asked = self.open(path, verb, body, query=query, content_type=content_type, retries=retries)
        with asked as answer:
            try:
                found: Body = read_json(answer.data)
            except ValueError as error:  # a page of HTML, say
                text = f"{verb} {path}: the answer is no JSON: {error}"
                raise Unavailable(200, "Garbled", text) from None
            return found

    @contextmanager
    def open(
        self,
        path: str,
        verb: str = "GET",
        body: Mapping[str, Any] | None = None,
        *,
        query: Query | None = None,
        content_type: str = "application/json",
        read_seconds: float = READ_SECONDS,
        retries: Any = None,
    ) -> Iterator[Any]:
        """Yield the `urllib3.HTTPResponse` to a request, before its body is read.

        With `retries` the body is read too, and again after one that breaks off. Raises
        ClusterError or LoginFailed, also for what breaks within the block.
        """
        import urllib3

        self._check_open()
        login, answer = self.login, None
        headers = {**login.headers(), "accept": "application/json", "content-type": content_type}
        asked = "?" + urlencode(query, errors="replace") if query else ""
        try:
            answer = login.pool.urlopen(
                verb,
                f"{login.server}{path}{asked}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=retries is not None,
                retries=retries or False,
                redirect=False,
                timeout=urllib3.Timeout(connect=self.connect_seconds, read=read_seconds),
            )
            self._answers.add(answer)
            self._check_open()
            if answer.status >= 300:
                raise refusal(answer.status, answer.data, login, path)
            yield answer
        except urllib3.exceptions.HTTPError as error:
            self._check_open()
            raise no_answer(error, login) from error
        finally:
            if answer is not None:
                self._answers.discard(answer)
                answer.close()  # of no effect on one that was read to its end

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until the connection is closed. Raises Unavailable in that case."""
        self._closed.wait(seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable(0, CLOSED, "the connection was closed")

    def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Keep | None = None,
    ) -> Listing:
        """Return all objects, and the version from which a watch goes on.

        `namespace` is None for all namespaces. With `keep`, only what that returns of the objects
        is kept. Raises ClusterError or LoginFailed.
        """
        query, found = {**_selectors(labels, fields), "limit": PAGE}, list[Any]()
        while True:
            page = self.request("GET", resource.path(namespace), query=query)
            found += kept(page["items"], keep)
            mark = page["metadata"].get("continue")
            if not mark:
                return Listing(found, page["metadata"].get("resourceVersion", ""))
            query["continue"] = mark

    def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        keep: Keep | None = None,
        known: Sequence[Body] = (),
        deadline: float | None = None,
    ) -> Generator[WatchEvent, None, None]:
        """Yield ADDED for each object that there is, then each change, for as long as it is read.

        It survives expiry, cut connections and a server that is away; changes that it could not see
        come as the difference. It ends at `deadline`, on the monotonic clock. What `keep` returns
        must have the object's metadata. With `known`, it yields the changes since these objects
        were read; if it is one, of that one alone. Raises Refused, NotFound or LoginFailed, and
        Unavailable once the connection is closed.
        """
        seen, fields, version, pause = Seen(), "", "", FIRST_PAUSE
        list(seen.listed(known))
        if len(known) == 1:
            metadata = known[0]["metadata"]
            fields, version = f"metadata.name={metadata['name']}", str(metadata["resourceVersion"])
        path, selectors = resource.path(namespace), _selectors(labels, fields)
        while deadline is None or time.monotonic() < deadline:
            began = time.monotonic()
            try:
                if not version:
                    listing = self.list(
                        resource, namespace=namespace, labels=labels, fields=fields, keep=keep
                    )
                    yield from seen.listed(listing.items)
                    version = listing.resource_version
                for event in self._events(
                    path, {**selectors, "resourceVersion": version}, deadline
                ):
                    version, pause = event.object["metadata"]["resourceVersion"], FIRST_PAUSE
                    # A bookmark has a version, and no object.
                    found = [] if event.type == "BOOKMARK" else kept([event.object], keep)
                    for body in found:
                        yield from seen.changed(WatchEvent(event.type, body))
                if time.monotonic() - began > 1.0:
                    continue
            except Expired:
                version = ""
            except Unavailable as error:
                self._check_open()
                if deadline is not None and time.monotonic() >= deadline:
                    return
                self.note(f"{error.message}; trying again")
            left = LONGEST_PAUSE if deadline is None else max(0.0, deadline - time.monotonic())
            self.pause(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _events(self, path: str, query: Query, deadline: float | None) -> Iterator[WatchEvent]:
        """Yield the events of one watch until the server ends it, or `deadline` does."""
        seconds = WATCH_SECONDS
        if deadline is not None:
            seconds = max(0.1, min(seconds, deadline - time.monotonic()))
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true"}
        asked["timeoutSeconds"] = math.ceil(seconds)
        grace = 15.0 if seconds == WATCH_SECONDS else 0.0
        with self.open(path, query=asked, read_seconds=seconds + grace) as answer:
            for line in answer:
                if line.endswith(b"\n"):  # else it was cut
                    yield read_event(line)


def _selectors(labels: str, fields: str) -> dict[str, str | int]:
    found = {"labelSelector": labels, "fieldSelector": fields}
    return {name: text for name, text in found.items() if text}
