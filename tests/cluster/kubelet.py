"""A kubelet that plays pods by a script: no container, real status writes, thousands of pods."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.cluster.apiserver import ApiError
from tests.cluster.client import STRATEGIC, Client
from tests.cluster.podstatus import KILLED, End, Life, Pod, ended, running


@dataclass
class _Played:
    """A pod on our nodes, and what it has been told."""

    pod: Pod
    told: asyncio.Event = field(default_factory=asyncio.Event)  # to end, for whatever reason
    deleted: asyncio.Event = field(default_factory=asyncio.Event)
    end: End | None = None  # as told by `finish`, else as its life has it
    overdue: bool = False
    deadline: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    @property
    def grace_seconds(self) -> float:
        """What the deletion allows, else what the pod's spec does."""
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        return float(self.pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace)

    def see(self, pod: Pod) -> None:
        """Take in a newer version: it may be deleted by now, or have got a deadline."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self.deleted.set()
            self.told.set()
        seconds, start = pod["spec"].get("activeDeadlineSeconds"), pod["status"].get("startTime")
        if seconds is not None and start is not None:
            if self.deadline:
                self.deadline.cancel()
            passed = (datetime.now(UTC) - datetime.fromisoformat(start)).total_seconds()
            self.deadline = asyncio.get_running_loop().call_later(seconds - passed, self._miss)

    def _miss(self) -> None:
        self.overdue = True
        self.told.set()

    async def is_told(self, *, within_seconds: float | None) -> bool:
        """Wait to be told to end, for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self.told.wait()
        return self.told.is_set()

    def close(self) -> None:
        """Stop playing this pod."""
        for pending in (self.deadline, self.task):
            if pending:
                pending.cancel()


class ScriptedKubelet:
    """Plays the pods of some nodes while its `async with` block runs.

    `script` is asked once for each pod when it is bound. Pods without a node of which `bind` is
    true are bound to ours in turn, for a control plane without a scheduler; the nodes must exist
    either way. `address` has the addresses of pods at which somebody listens. `see` gets all events
    of pods, with their types. All containers of a pod start and end together; restartPolicy is
    taken as Never.
    """

    def __init__(
        self,
        client: Client,
        nodes: Sequence[str],
        script: Callable[[Pod], Life] = lambda pod: Life(),
        *,
        bind: Callable[[Pod], bool] | None = None,
        address: Callable[[Pod], str] = lambda pod: "",
        see: Callable[[str, Pod], None] = lambda kind, pod: None,
    ) -> None:
        self._client = client
        self._nodes = frozenset(nodes)
        self._turns = itertools.cycle(nodes)
        self._script = script
        self._bind = bind
        self._address, self._see = address, see
        self._played: dict[str, _Played] = {}  # by uid
        self._bindings: dict[str, asyncio.Task[None]] = {}  # by uid
        self._muted: set[str] = set()
        self._addresses = itertools.count(1)
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._watcher = self._spawn(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        played = [one.task for one in self._played.values() if one.task]
        for one in self._played.values():
            one.close()
        for task in (tasks := [self._watcher, *self._bindings.values(), *played]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure and error is None:
            raise self._failure
        if self._failure and error is not None:
            error.add_note(f"before that, the kubelet failed: {self._failure!r}")

    def finish(self, namespace: str, name: str, end: End | None = None) -> None:
        """End a pod now, well by default. Raises LookupError where no such pod lives here."""
        for one in self._played.values():
            meta = one.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name) and not one.told.is_set():
                one.end = end or End()
                one.told.set()
                return
        raise LookupError(f"no living pod {namespace}/{name} on {', '.join(sorted(self._nodes))}")

    def mute(self, node: str) -> None:
        """Say no more of this node's pods, and let none go: what a lost node's kubelet does."""
        self._muted.add(node)

    def unmute(self, node: str) -> None:
        """Speak for this node's pods again; what came to pass meanwhile is written now."""
        self._muted.discard(node)

    def _spawn(self, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def note(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (failure := task.exception()):
                self._failure = self._failure or failure

        task = asyncio.create_task(story)
        task.add_done_callback(note)
        return task

    async def _watch(self) -> None:
        query = "" if self._bind is not None else "fieldSelector=spec.nodeName!="
        async for kind, pod in self._client.follow("/api/v1/pods", query):
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            self._see(kind, pod)
            if kind == "DELETED":
                self._bindings.pop(uid, None)
                if one := self._played.pop(uid, None):
                    one.close()
            elif node in self._nodes:
                if uid not in self._played:
                    self._played[uid] = _Played(pod)
                    self._played[uid].task = self._spawn(self._play(self._played[uid]))
                self._played[uid].see(pod)
            elif node is None and uid not in self._bindings and self._bind and self._bind(pod):
                self._bindings[uid] = self._spawn(self._bind_pod(pod))

    async def _bind_pod(self, pod: Pod) -> None:
        meta, node = pod["metadata"], next(self._turns)
        body = {
            "metadata": {"name": meta["name"], "uid": meta["uid"]},
            "target": {"kind": "Node", "name": node},
        }
        await self._write("POST", f"{_path(pod)}/binding", body, node=node)

    async def _play(self, one: _Played) -> None:
        """The life of one pod, up to its final deletion; cancelled when the object is gone."""
        phase = one.pod["status"]["phase"]
        if phase in ("Pending", "Running"):
            life = self._script(one.pod)
            if phase == "Pending" and not await one.is_told(within_seconds=life.start_seconds):
                address = self._address(one.pod)
                await self._report(one.pod, running(one.pod, next(self._addresses), address))
                phase = "Running"
            if not await one.is_told(within_seconds=life.run_seconds):
                one.end = life.end
            if one.end is None:  # deleted or overdue: it has its grace
                await asyncio.sleep(min(life.stop_seconds, one.grace_seconds))
                killed = End(KILLED) if life.stop_seconds > one.grace_seconds else life.stop_end
                one.end = replace(killed, pod_reason="DeadlineExceeded" if one.overdue else "")
            if phase == "Running" or not one.deleted.is_set():
                await self._report(one.pod, ended(one.pod, one.end))
        await one.deleted.wait()
        uid = one.pod["metadata"]["uid"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._write("DELETE", _path(one.pod), body, node=one.pod["spec"]["nodeName"])

    async def _report(self, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._write("PATCH", f"{_path(pod)}/status", body, node=pod["spec"]["nodeName"])

    async def _write(self, method: str, path: str, body: dict[str, Any], *, node: str) -> None:
        """One write that outlasts restarts of the API server, and accepts that a pod is gone."""
        kind = STRATEGIC if method == "PATCH" else "application/json"
        while True:
            while node in self._muted:
                await asyncio.sleep(0.05)
            try:
                await self._client.request(method, path, body, content_type=kind)
                return
            except ApiError as error:
                if error.code in (404, 409):
                    return
                if error.code < 500 and error.code != 429:
                    raise
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.2)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


Played = Callable[..., ScriptedKubelet]
