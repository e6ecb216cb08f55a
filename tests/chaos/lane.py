"""A namespace of a real cluster with its operator, or two, behind fault proxies."""

import asyncio
import signal
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, NETWORK_POLICIES, PODS, SERVICES, Listing
from ddpjob.cluster import Resource as Kind
from ddpjob.errors import AlreadyExists, Conflict, NotFound
from ddpjob.json_depth import Body
from tests.chaos.agents import Agents, Doors
from tests.chaos.proxy import Faults, Proxy
from tests.chaos.rounds import Deed
from tests.chaos.source import KINDS, Source
from tests.chaos.workloads import Workload, finds_a_name_taken, runs
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End
from tests.localplay import Script

READY_SECONDS = 120.0
TAKEN_SECONDS = 60.0  # in which a job says that a name is taken


@dataclass
class Site:
    """What all lanes share: the control plane, its administrator, the kubelet of all pods."""

    server: ApiServer
    client: Client
    kubelet: ScriptedKubelet
    folder: Path
    doors: Doors


class Operator:
    """One operator process and its proxy; started again whenever it ends, as a Deployment would."""

    def __init__(self, lane: "Lane", number: int) -> None:
        self.exits: list[str] = []
        """The last words of each time that it ended and nobody had killed it."""
        self._lane, self._killed = lane, False
        self.proxy = Proxy(
            lane.site.server,
            f"operator-{number}",
            kill=self._kill,
            freeze=self._freeze,
            wrote=lane.wrote,
        )

    async def start(self) -> None:
        """Start it, and wait until it works."""
        self._process = await asyncio.to_thread(
            OperatorProcess,
            self._lane.site.server,
            self._lane.site.folder,
            *("--namespace", self._lane.namespace),
            url=self.proxy.url,
        )
        self._process.start()
        await asyncio.to_thread(self._process.wait_until_ready, READY_SECONDS)

    async def keep_running(self) -> None:
        """Start it again whenever it has ended, until cancelled; then it is ended."""
        try:
            while True:
                process = self._process.process
                assert process is not None
                if process.poll() is not None:
                    if not self._killed:
                        log = self._process.log.read_text(errors="replace")
                        self.exits.append(f"exit code {process.returncode}: {log[-1500:]}")
                    self._killed = False
                    self._process.start()
                await asyncio.sleep(0.05)
        finally:
            self._freeze(False)
            self._process.kill()

    def _kill(self) -> None:
        assert self._process.process is not None
        self._killed = True
        self._process.process.kill()

    def _freeze(self, stop: bool) -> None:
        assert self._process.process is not None
        self._process.process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)


@dataclass
class Lane:
    """One namespace. As a `Cluster` it ignores which namespace it is asked for: it has but one.

    Reads are answered by the auditor's own watch. An asynchronous context manager.
    """

    site: Site
    operators: int = 1
    patience: tuple[float, float] = (90.0, 0.05)
    faults: Faults = field(default_factory=Faults)
    script: Script = runs
    deeds: list[Deed] = field(default_factory=list)
    _agents: Agents | None = None

    async def __aenter__(self) -> Self:
        self.namespace = f"chaos-{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(self.site.server.create_namespace, self.namespace)
        self.source = Source(self.site.client, self.namespace, self._see)
        self._groups: defaultdict[str, set[str]] = defaultdict(set)
        self._acts: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._failure: BaseException | None = None
        try:
            for resource in KINDS.values():
                self._spawn(self.source.follow(resource))
            self.running = [Operator(self, n + 1) for n in range(self.operators)]
            for operator in self.running:
                await self._stack.enter_async_context(operator.proxy)
            await asyncio.gather(*(operator.start() for operator in self.running))
            for operator in self.running:
                self._spawn(operator.keep_running())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        path = f"/api/v1/namespaces/{self.namespace}"
        with suppress(ApiError):
            await self.site.client.request("DELETE", path)

    def _spawn(self, story: Any) -> None:
        def note(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (failure := task.exception()):
                self._failure = self._failure or failure

        task = asyncio.create_task(story)
        task.add_done_callback(note)
        self._stack.push_async_callback(_cancel, task)

    def check(self) -> None:
        """Raise what went wrong with the harness itself, if anything did."""
        if self._failure is not None:
            raise self._failure

    def begin(self, faults: Faults, workload: Workload) -> None:
        """Another run: its faults, and how its pods end."""
        self.faults, self.script = faults, workload.script
        self.source.changes, self.deeds, self._agents = [], [], None
        if workload.play is not None:
            self._agents = Agents(
                self.site.doors, workload.play, self._note, self._end, self._newest
            )
        self._groups.clear()
        for operator in self.running:
            operator.proxy.faults = faults
            operator.exits.clear()

    def wrote(self, number: int) -> None:
        """What somebody does after so many of the operator's writes."""
        for fault in self.faults.pending:
            if (fault.where, fault.number) == ("user", number):
                self.faults.fired.append(fault)
                task = asyncio.create_task(self._meddle(fault.kind))
                self._acts.add(task)
                task.add_done_callback(self._acts.discard)

    def _see(self, type_: str, body: Body) -> None:
        """Let a pod end as the script says, once its group has been whole."""
        if body["kind"] != "Pod" or names.RANK_LABEL not in _labels(body):
            return
        if self._agents is not None:
            self._agents.see(body, gone=type_ == "DELETED")
        if type_ == "DELETED":
            return
        env = {v["name"]: v.get("value") for v in body["spec"]["containers"][0]["env"]}
        group = self._groups[env["PET_RDZV_ID"]]
        if body.get("status", {}).get("phase") != "Running":
            return
        group.add(body["metadata"]["name"])
        if len(group) == int(env["PET_NNODES"]):
            for pod in self.source.of(PODS):
                if pod["metadata"]["name"] in group:
                    labels = _labels(pod)
                    code = self.script(
                        int(labels[names.ATTEMPT_LABEL]), int(labels[names.RANK_LABEL])
                    )
                    if code is not None:
                        self._finish(pod["metadata"]["name"], code)

    def _finish(self, name: str, code: int, message: str = "") -> None:
        with suppress(LookupError):  # it was told before, or is being deleted
            self.site.kubelet.finish(self.namespace, name, End(code, message))

    def _end(self, pod: Body, code: int, message: str) -> None:
        self._finish(pod["metadata"]["name"], code, message)

    def _note(self, deed: Deed) -> None:
        """Keep what an agent has done, behind all that was there before."""
        version = max(deed.version, self.source.newest, *(d.version for d in self.deeds[-1:]))
        self.deeds.append(replace(deed, version=version))

    async def _newest(self) -> int:
        path = DDPJOBS.path(self.namespace)
        found = await self.site.client.request("GET", path)
        return int(found["metadata"]["resourceVersion"])

    async def _meddle(self, kind: str) -> None:
        """What users do."""
        with suppress(ApiError, IndexError):  # nothing there any more to do it to
            await _MEDDLING[kind](self)

    async def change(self, resource: Kind, name: str, body: Mapping[str, Any], part: str) -> None:
        """A merge patch, by the administrator."""
        path = resource.path(self.namespace, name, part or None)
        await self.site.client.request("PATCH", path, body, content_type=MERGE)

    async def change_all(self, body: Mapping[str, Any], *resources: Kind) -> None:
        """The same merge patch for all objects of some kinds."""
        for resource in resources:
            for found in self.source.of(resource):
                await self.change(resource, found["metadata"]["name"], body, "")

    async def drop_first(self, resource: Kind) -> None:
        """Delete the first object of a kind that is a job's."""
        for found in self.source.of(resource):
            if found["metadata"].get("ownerReferences"):
                uid = found["metadata"]["uid"]
                await self.delete(resource, "", found["metadata"]["name"], uid=uid)
                return

    async def orphan_first_pod(self) -> None:
        """Take a pod's owner away, and the pod once the job says that its name is taken.

        An operator that had not seen the pod yet takes it for somebody else's, and leaves it alone.
        """
        metadata = self.source.of(PODS)[0]["metadata"]
        await self.change(PODS, metadata["name"], {"metadata": {"ownerReferences": None}}, "")
        with suppress(TimeoutError, NotFound):
            async with asyncio.timeout(TAKEN_SECONDS):
                while not any(map(finds_a_name_taken, self.source.of(DDPJOBS))):
                    await asyncio.sleep(0.1)
                await self.delete(PODS, "", metadata["name"], uid=metadata["uid"])

    async def create(self, resource: Kind, namespace: str, body: Any) -> Body:
        answer = await self._ask("POST", resource.path(self.namespace), body)
        self.source.put(resource, answer)
        return answer

    async def get(self, resource: Kind, namespace: str, name: str) -> Body:
        self.check()
        found = self.source.objects.get((resource.plural, name))
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def list(self, resource: Kind, *, namespace: str | None) -> Listing:
        return Listing(self.source.of(resource), "")

    async def delete(self, resource: Kind, namespace: str, name: str, *, uid: str) -> Body | None:
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        answer = await self._ask("DELETE", resource.path(self.namespace, name), body)
        if resource == DDPJOBS:  # nothing holds it
            known = self.source.objects.get((resource.plural, name))
            if known is not None and known["metadata"]["uid"] == uid:
                version = int(known["metadata"]["resourceVersion"])
                self.source.drop(resource, name, version)
        return answer

    async def update(self, resource: Kind, namespace: str, body: Any) -> Body:
        path = resource.path(self.namespace, body["metadata"]["name"])
        answer = await self._ask("PUT", path, body)
        self.source.put(resource, answer)
        return answer

    async def update_status(self, resource: Kind, namespace: str, body: Any) -> Body:
        """Of a pod that ends: it is told so, and its kubelet writes."""
        (container,) = body["status"]["containerStatuses"]
        code = container["state"]["terminated"]["exitCode"]
        self.site.kubelet.finish(self.namespace, body["metadata"]["name"], End(code))
        return dict(body)

    async def _ask(self, method: str, path: str, body: Any) -> Body:
        try:
            return await self.site.client.request(method, path, body)
        except ApiError as error:
            if error.code == 409 and '"AlreadyExists"' in str(error):
                raise AlreadyExists(409, "AlreadyExists", str(error)) from None
            if error.code == 409:
                await asyncio.sleep(0.05)  # until the watch has brought the newer one
                raise Conflict(409, "Conflict", str(error)) from None
            if error.code == 404:
                raise NotFound(404, "NotFound", str(error)) from None
            raise


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _labels(body: Body) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


GARBAGE = {
    "metadata": {
        "annotations": {
            "ddpjob.dev/anything": "\u2028{{ 7 * 7 }}",
            "kubectl.kubernetes.io/last-applied-configuration": "{",
        }
    }
}
_MEDDLING: dict[str, Any] = {
    "annotate": lambda lane: lane.change_all(GARBAGE, DDPJOBS, PODS, SERVICES),
    "label": lambda lane: lane.change_all({"metadata": {"labels": {"team": "x"}}}, *KINDS.values()),
    "write-status": lambda lane: lane.change(
        DDPJOBS,
        lane.source.of(DDPJOBS)[0]["metadata"]["name"],
        {"status": {"summary": {"nodes": "9/9"}}},
        "status",
    ),
    "delete-pod": lambda lane: lane.drop_first(PODS),
    "orphan-pod": lambda lane: lane.orphan_first_pod(),
    "delete-service": lambda lane: lane.drop_first(SERVICES),
    "delete-configmap": lambda lane: lane.drop_first(CONFIGMAPS),
    "delete-networkpolicy": lambda lane: lane.drop_first(NETWORK_POLICIES),
}
