"""Requests to agents.

A pod of somebody's writes the answer, so the answer is hostile: its bytes, its time and the cost of
reading it are bounded.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from aiohttp.client_proto import ResponseHandler
from pydantic import BaseModel, ValidationError

from ddpjob import names
from ddpjob.controller.shares import Shares
from ddpjob.plan.model import PodRecord

log = logging.getLogger(__name__)

Page = TypeVar("Page", bound=BaseModel)

# A pod's network is near.
CONNECT_SECONDS = 2.0
# Of a page. An agent keeps its largest, of a group whose nodes have all failed, below 48 KiB.
# pydantic makes objects of known fields alone: the dearest page that was found takes it 3 ms.
MAX_BYTES = 64 * 1024
# Of a whole connection, which has one answer: the largest page, and what stands before it.
MAX_CONNECTION_BYTES = 96 * 1024
# Bytes of a line of an answer's head. aiohttp would keep a hundred of 8 KiB.
MAX_LINE = 1024
# Seconds of the event loop that an answer takes besides being read.
COST = 0.001


class AgentHttp:
    """A session for requests to agents."""

    def __init__(self, http: aiohttp.ClientSession, *, local: bool) -> None:
        """`local`: agents are on this machine; else none is asked there."""
        self._http, self._shares, self._local = http, Shares(), local

    async def read(
        self,
        pod: PodRecord,
        path: str,
        kind: type[Page],
        headers: Mapping[str, str] = MappingProxyType({}),
        seconds: float | None = None,
        *,
        content: bytes | None = None,
    ) -> Page | None:
        """Return a page of the pod's agent, or None if the agent does not give one.

        It has so many seconds for it, or else those of the session, once it is the turn of its
        namespace. `content` is posted, if it is not None.
        """
        await asyncio.sleep(self._shares.take(pod.namespace, COST))
        within = self._http.timeout if seconds is None else _within(seconds)
        if not self._local and not is_of_a_pod(pod.ip):
            return None
        address = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        port = pod.agent_port if self._local else names.AGENT_PORT
        try:
            async with self._http.request(
                "GET" if content is None else "POST",
                f"http://{address}:{port}{path}",
                data=content,
                headers=headers,
                allow_redirects=False,
                timeout=within,
            ) as answer:
                if answer.status != 200:
                    return None
                text = await answer.content.read(MAX_BYTES + 1)
                while len(text) <= MAX_BYTES and (more := await answer.content.read(MAX_BYTES)):
                    text += more
            return self._parsed(pod, kind, text) if len(text) <= MAX_BYTES else None
        except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError) as error:
            # Its text would quote the answer, of which nobody knows what is in it.
            log.debug("no answer host=%s error=%s", pod.ip, type(error).__name__)
            return None

    def _parsed(self, pod: PodRecord, kind: type[Page], text: bytes) -> Page:
        begin = time.perf_counter()
        try:
            return kind.model_validate_json(text)
        finally:
            self._shares.take(pod.namespace, time.perf_counter() - begin)


@asynccontextmanager
async def session(seconds: float, *, local: bool = True) -> AsyncIterator[AgentHttp]:
    """A session for requests to agents, of so many seconds each if nothing else is said."""
    # No cookies: what one pod sets, another must not get.
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        timeout=_within(seconds),
        cookie_jar=jar,
        connector=_Connector(limit=0, force_close=True),
        auto_decompress=False,  # no agent compresses
        max_line_size=MAX_LINE,
        max_field_size=MAX_LINE,
    ) as http:
        yield AgentHttp(http, local=local)


def is_of_a_pod(ip: str) -> bool:
    """Whether a pod can have this address: none is on the operator's own machine, or beside it."""
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    beside = address.is_loopback or address.is_link_local
    return not (beside or address.is_unspecified or address.is_multicast)


class _Bounded(ResponseHandler):
    """A connection that ends where more comes than an agent has to say.

    A body alone can be bounded by its reader. Heads cannot: aiohttp skips interim answers (1xx) for
    as long as they come, and does nothing else meanwhile.
    """

    _taken = 0

    def data_received(self, data: bytes) -> None:
        self._taken += len(data)
        if self._taken <= MAX_CONNECTION_BYTES:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_Bounded, loop=self._loop)


def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_SECONDS))
