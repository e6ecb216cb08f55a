"""One pod in the API: what a kubelet writes into its status, its newest version, and reports."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ddpjob.cluster import PODS, Cluster
from ddpjob.errors import Conflict, NotFound
from ddpjob.json_depth import Body
from ddpjob.times import written

# A kubelet reads no more bytes of a termination message.
MESSAGE_BYTES = 4096
# The conditions that change with the container, and that the operator looks at.
READY = ("ContainersReady", "Ready")


def running(status: Body, container: Body, *, address: str, now: datetime) -> Body:
    """Return the status of a pod whose container has started and is ready."""
    state = {"running": {"startedAt": written(now)}}
    return _status(status, container, "Running", state, now=now) | {"podIP": address}


def terminated(
    status: Body,
    container: Body,
    *,
    code: int,
    message: str,
    now: datetime,
    reason: str = "",
    late: bool = False,
) -> Body:
    """Return the status of a pod whose container has ended, `late` by activeDeadlineSeconds.

    `code` is the exit code, or minus the number of a signal.
    """
    before = (status.get("containerStatuses") or [{"state": {}}])[0]["state"]
    ended: Body = {"exitCode": code if code >= 0 else 128 - code}
    if code < 0:
        ended["signal"] = -code
    ended["reason"] = reason or ("Error" if code else "Completed")
    if message:
        ended["message"] = message.encode()[-MESSAGE_BYTES:].decode(errors="ignore")
    ended["startedAt"] = before.get("running", {}).get("startedAt") or written(now)
    ended["finishedAt"] = written(now)
    phase = "Failed" if code else "Succeeded"
    new = _status(status, container, phase, {"terminated": ended}, now=now)
    if late:
        text = "Pod was active on the node longer than the specified deadline"
        new |= {"phase": "Failed", "reason": "DeadlineExceeded", "message": text}
    return new


def _status(status: Body, container: Body, phase: str, state: Body, *, now: datetime) -> Body:
    ready = "running" in state
    container_status = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }
    others = [each for each in status.get("conditions") or [] if each["type"] not in READY]
    changed = {"status": str(ready), "lastTransitionTime": written(now)}
    return status | {
        "phase": phase,
        "startTime": status.get("startTime") or written(now),
        "containerStatuses": [container_status],
        "conditions": [*others, *({"type": kind, **changed} for kind in READY)],
    }


class Gone(Exception):
    """The pod is no longer in the API: nothing is left to report."""


class PodView:
    """The newest known body of a pod. `see` and `lose` are fed from a watch."""

    def __init__(self, cluster: Cluster, pod: Body) -> None:
        self._cluster, self.pod, self.gone = cluster, pod, False
        meta = pod["metadata"]
        self.namespace, self.name, self.uid = meta["namespace"], meta["name"], meta["uid"]
        self._news = asyncio.Event()

    def see(self, pod: Body) -> None:
        """Take in a new version of the pod."""
        self._take(pod)
        self._news.set()

    def lose(self) -> None:
        """Take in that the pod is no longer in the API."""
        self.gone = True
        self._news.set()

    @property
    def ends(self) -> bool:
        """Return whether the pod is being deleted, or is gone."""
        return self.gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    async def news(
        self, timeout: float | None = None, *, until: asyncio.Task[Any] | None = None
    ) -> None:
        """Wait for a change, for `until` to be done, or for `timeout` seconds."""
        news: asyncio.Task[Any] = asyncio.create_task(self._news.wait())
        try:
            waiting = {news, until} if until else {news}
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        self._news.clear()

    async def report(
        self, change: Callable[[Body], Body], *, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Write the status that `change` makes of the present one. Raises Gone."""
        with contextlib.suppress(NotFound):
            while not self.gone:
                body = {**self.pod, "status": change(self.pod.get("status") or {})}
                if annotations:
                    merged = {**(body["metadata"].get("annotations") or {}), **annotations}
                    body["metadata"] = {**body["metadata"], "annotations": merged}
                try:
                    self._take(await self._cluster.update_status(PODS, self.namespace, body))
                    return
                except Conflict:
                    found = await self._cluster.get(PODS, self.namespace, self.name)
                if found["metadata"]["uid"] != self.uid:
                    break
                self._take(found)
        raise Gone

    async def delete(self) -> None:
        """Delete the pod's object, as a node does when the pod has ended."""
        with contextlib.suppress(NotFound, Conflict):
            await self._cluster.delete(
                PODS, self.namespace, self.name, uid=self.uid, grace_seconds=0
            )

    def _take(self, pod: Body) -> None:
        """Keep this version unless a newer one is known: an answer may come after it."""
        new, old = (int(each["metadata"]["resourceVersion"]) for each in (pod, self.pod))
        if new >= old:
            self.pod = pod
