"""The embedded cluster with a trail of every change, the operator's own marked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

from ddpjob import names
from ddpjob.cluster import Resource, WatchEvent
from ddpjob.errors import Unavailable, cluster_error
from ddpjob.json_depth import Body
from ddpjob.local.store import Store, Stored
from tests.chaos.auditor import Entry
from tests.chaos.faults import Fault
from tests.chaos.network import place
from tests.chaos.rounds import Deed
from tests.localplay import OperatorView, Watched
from tests.waiting import PATIENCE

_request: ContextVar[tuple[str, Body] | None] = ContextVar("request", default=None)
"""What the operator asks for just now: (verb, what it sent)."""

BLIND_SECONDS = 0.05  # long enough for pods to start and end
# Until the error of a status write is answered: what rests on the unwritten status shows meanwhile.
SICK_SECONDS = 0.5


class _RecordingStore(Store):
    def __init__(self, history: int, trail: list[Entry | Deed]) -> None:
        super().__init__(history)
        self._trail = trail
        self._bodies: dict[tuple[Resource, str, str], Body] = {}  # as of the last entry

    def commit(self, resource: Resource, body: Body, *, delete: bool = False) -> Stored:
        meta = body["metadata"]
        key = resource, meta["namespace"], meta["name"]
        before, after = self._bodies.pop(key, None), None
        final = super().commit(resource, body, delete=delete)
        if not delete:
            self._bodies[key] = after = final.body
        request = _request.get()
        verb = request[0] if request else "delete" if delete else "update" if before else "create"
        self._trail.append(
            Entry(
                by_operator=request is not None,
                verb=verb,
                kind=resource.kind,
                sent=request[1] if request else {},
                before=before,
                after=after,
                at=asyncio.get_running_loop().time(),
            )
        )
        # What the garbage collector does of it is nobody's request.
        _request.set(None)
        return final


class Trailed(Watched):
    """Keeps a `trail` of every change and deed, and does to the operator what `fault` says."""

    patience = (PATIENCE, 0.002)

    def __init__(self, fault: Fault | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.trail: list[Entry | Deed] = []
        self.fault = fault
        if fault and fault.kind in ("kill-before", "kill-after"):
            self.kill_at = (fault.number, fault.kind)
        self.has_nodes = False  # several, which a scheduler chooses
        self.view_until = 0.0  # loop time until which the operator's watches bring nothing
        self._store = _RecordingStore(100_000, self.trail)

    def _bind(self, pod: Body) -> None:
        if self.has_nodes:
            pod["spec"]["nodeName"] = place(pod, pod["metadata"]["labels"][names.RANK_LABEL])
        super()._bind(pod)

    @property
    def entries(self) -> list[Entry]:
        """The changes of objects alone."""
        return [entry for entry in self.trail if isinstance(entry, Entry)]

    @asynccontextmanager
    async def write(
        self, verb: str, resource: Resource, name: str, sent: Body
    ) -> AsyncIterator[None]:
        number = sum(self.writes.values()) + 1
        fault = self.fault if self.fault and self.fault.number == number else None
        async with super().write(verb, resource, name, sent):
            if fault and fault.kind == "500":
                await asyncio.sleep(SICK_SECONDS if verb == "status" else 0)
                raise cluster_error(500, "InternalError", "the API server is out of sorts")
            if fault and fault.kind == "conflict":
                raise cluster_error(409, "Conflict", "somebody was faster")
            token = _request.set((verb, sent))
            try:
                yield
            finally:
                _request.reset(token)
            if fault and fault.where == "view":
                self.view_until = asyncio.get_running_loop().time() + BLIND_SECONDS
            if fault and fault.kind == "lost-answer":
                raise Unavailable(0, "NoAnswer", "the answer was lost")

    def operator(self) -> "OperatorView":
        return _TrailedView(self)


class _TrailedView(OperatorView):
    async def watch(self, resource: Resource, **options: Any) -> AsyncIterator[WatchEvent]:
        loop, cluster = asyncio.get_running_loop(), cast(Trailed, self._cluster)
        async for event in cluster.watch(resource, **options):
            if (blind := cluster.view_until - loop.time()) > 0:
                await asyncio.sleep(blind)
                if cluster.fault and cluster.fault.kind == "gone":
                    raise cluster_error(410, "Expired", "too old resource version")
            yield event
