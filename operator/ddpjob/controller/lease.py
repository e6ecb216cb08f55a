"""Takes part in the election of the one replica that works, over a Lease of the API server's.

Being right never depends on it: status writes carry the version they were made from, deletions a
uid, pods a name of their own. The Lease keeps two replicas from doing everything twice.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

from ddpjob import names
from ddpjob.cluster import LEASES, Cluster
from ddpjob.controller.election import Election, Terms
from ddpjob.errors import ClusterError, Conflict, NotFound
from ddpjob.json_depth import Body

log = logging.getLogger(__name__)

# The timeout of a request. It is half of the deadline, so that a second request has time.
ANSWER_SECONDS = 5.0


def leave(why: str) -> NoReturn:
    """End this process now: no clean-up, in which something could still be written."""
    log.critical("stopping at once: %s", why)
    os._exit(1)


class Elector:
    """One candidate: `run` it, wait for `leading`, `check` before every write, `release` last."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        identity: str | None = None,
        terms: Terms | None = None,
        leave: Callable[[str], NoReturn] = leave,
    ) -> None:
        """`cluster` is a connection of its own: a renewal must not stand in line behind writes."""
        self._cluster, self._namespace, self._name, self._leave = cluster, namespace, name, leave
        # The pod's name with a random part, so that each process of a pod has its own.
        identity = identity or f"{socket.gethostname()}_{secrets.token_hex(4)}"
        self._election = Election(identity, terms)
        self.leading = asyncio.Event()
        """Set once this process leads. It never stops leading: it ends."""

    @property
    def seconds_alone(self) -> float:
        """Return for how long no process had led when this one began to, at least."""
        return self._election.seconds_alone

    def check(self) -> None:
        """End this process unless it leads: the fence before every write.

        A process that was stopped, or starved, goes on here before it knows how late it is.
        """
        if not self._election.leads(time.monotonic()):
            self._leave(f"a write without the lease {self._place}")

    async def run(self) -> None:
        """Run for election and renew the Lease, until cancelled or until the Lease is lost."""
        election, failing = self._election, False
        log.info("candidate=%s lease=%s", election.identity, self._place)
        while True:
            try:
                async with asyncio.timeout(self._at_most(ANSWER_SECONDS)):
                    await self._try()
                failing = False
            except (ClusterError, TimeoutError) as error:
                if not failing:
                    log.warning("lease=%s error=%s", self._place, str(error) or "no answer")
                failing = True
            if election.lost(time.monotonic()):
                late = f"could not be renewed for {election.terms.deadline:.0f} s"
                taken = f"is {election.holder}'s"
                mine = election.holder in ("", election.identity)
                self._leave(f"the lease {self._place} {late if mine else taken}")
            if election.leads(time.monotonic()) and not self.leading.is_set():
                log.info("leading lease=%s candidate=%s", self._place, election.identity)
                self.leading.set()
            await asyncio.sleep(self._at_most(election.terms.retry))

    async def release(self) -> None:
        """End the leadership now, if possible. Otherwise another replica gets the Lease in 15 s."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                spec = self._election.step_down()
                while spec is not None:
                    try:
                        await self._write(spec)
                        log.info("released lease=%s", self._place)
                        return
                    except Conflict:  # a renewal that was cancelled, but stored
                        await self._refresh()
                        spec = self._election.step_down()
        except (ClusterError, TimeoutError) as error:
            log.warning("not released lease=%s error=%s", self._place, str(error) or "no answer")

    @property
    def _place(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _at_most(self, seconds: float) -> float:
        """So long, but not beyond the moment at which what was won is lost."""
        left = self._election.seconds_left(time.monotonic())
        return seconds if left is None else min(seconds, left)

    async def _try(self) -> None:
        """Renew what is ours, take what is free."""
        if not self._election.leads(time.monotonic()):
            await self._refresh()
        for _ in range(2):
            asked_at = time.monotonic()
            spec = self._election.bid(asked_at, _timestamp())
            if spec is None:
                return
            try:
                self._election.won(await self._write(spec), asked_at)
                return
            except (Conflict, NotFound):  # somebody was faster, or our own last answer was lost
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            lease = await self._cluster.get(LEASES, self._namespace, self._name)
        except NotFound:
            lease = None
        self._election.saw(lease, time.monotonic())

    async def _write(self, spec: Body) -> Body:
        """Store this spec, if the Lease is still what was seen. Raises Conflict, NotFound."""
        if (seen := self._election.lease) is not None:
            return await self._cluster.update(LEASES, self._namespace, {**seen, "spec": spec})
        labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
        metadata = {"name": self._name, "namespace": self._namespace, "labels": labels}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
        return await self._cluster.create(LEASES, self._namespace, {**lease, "spec": spec})


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
