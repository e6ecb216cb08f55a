"""One pod's life on this machine: prepare, start, report, watch over, stop, report, delete."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS, Cluster
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body
from ddpjob.local import pod_status, volumes
from ddpjob.local.gpus import Share
from ddpjob.local.launch import CannotStart, Launch, Place, launch, main_container, without_archive
from ddpjob.local.network import LOOPBACK, Loopback
from ddpjob.local.pod_status import Gone, PodView
from ddpjob.local.process import PodProcess
from ddpjob.local.volumes import PodFolders

# The exit code of a container that cannot start, as with containerd's StartError.
CANNOT_START = 128
# The time between two requests for a namespace's agent, which the operator makes anew.
AGENT_SECONDS = 1.0
# The agent's reason for failures that no restart mends.
NO_USE = "LaunchFailed"

OnLine = Callable[[Mapping[str, str], str], None]


@dataclass(kw_only=True)
class Node:
    """This machine, as all its pods see it."""

    cluster: Cluster
    directory: Path
    """Gets a folder for each job: logs, volumes, the pods' own files."""
    node_name: str = "local"
    python: str = sys.executable
    """Stands in for `python3` and `python` in commands."""
    on_line: OnLine = lambda labels, line: None
    """Gets a pod's labels and each line that it prints."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cwd: Path = field(default_factory=Path.cwd)
    loopback: Loopback = field(default_factory=Loopback)
    shares: Sequence[Share] = ()
    """The GPUs of the nodes of the one job that is run, by their ranks; without them no pod sees
    one."""
    shutdown_seconds: float = 5.0
    """What processes have to end after SIGTERM, if this one is cancelled."""
    code: Path | None = None
    """The folder that jobs with `spec.code` use as it is; without it archives are unpacked."""


class PodRun:
    """Plays one pod, which `view` is kept up to date on; `live` is its task."""

    def __init__(self, node: Node, pod: Body) -> None:
        self.node, self.view = node, PodView(node.cluster, pod)
        self.folders = PodFolders(node.directory, pod)
        self._process: PodProcess | None = None

    def kill(self) -> None:
        """End the processes now."""
        if self._process:
            self._process.kill()

    async def live(self, before: set[asyncio.Task[None]]) -> None:
        """Run the pod until its end, after the tasks `before`, of pods with the same name.

        Cancelled, it ends the processes, and leaves the API alone.
        """
        view = self.view
        with contextlib.suppress(Gone):
            if before:
                await asyncio.wait(before)
            if view.pod["status"].get("phase") == "Pending" and not view.ends:
                await self._run()
            while not view.ends:
                await view.news()
            if not view.gone:
                await view.delete()
        self.folders.remove()

    async def _run(self) -> None:
        try:
            launch = await self._prepare()
        except CannotStart as problem:
            await self._report_end(CANNOT_START, str(problem), NO_USE)
            return
        if launch is None:
            return
        self._process = process = await PodProcess.start(
            launch, log=self.folders.log, on_line=self._on_line, notes=_notes(self.view.pod)
        )
        ended = asyncio.create_task(process.wait())
        try:
            await self._report_running()
            late = await self._watch_over(process, ended)
        except asyncio.CancelledError:
            process.terminate()
            await asyncio.wait({ended}, timeout=self.node.shutdown_seconds)
            raise
        finally:
            process.kill()
            await asyncio.wait({ended})
        code = ended.result()
        await self._report_end(code, self._message(code, process.tail), late=late)

    async def _prepare(self) -> Launch | None:
        """Return what to start; None if the pod is deleted before that. Raises CannotStart."""
        node, view = self.node, self.view
        pod = without_archive(view.pod) if node.code else view.pod
        config_maps: dict[str, Body] = {}
        for name in volumes.config_map_volumes(pod):
            while name not in config_maps:
                try:
                    config_maps[name] = await node.cluster.get(CONFIGMAPS, view.namespace, name)
                except NotFound:
                    if not name.startswith(names.AGENT_PREFIX):
                        break
                    await view.news(AGENT_SECONDS)
                    if view.ends:
                        return None
        self.folders.clear()
        given = {names.SOURCE_VOLUME: node.code.absolute()} if node.code else {}
        place = Place(
            address=volumes.address(pod, node.loopback),
            host_address=LOOPBACK,
            variables=volumes.variables(pod, node.loopback),
            folders=volumes.mount(pod, self.folders, config_maps, given),
            defaults=volumes.defaults(pod, node.loopback),
            share=volumes.share(pod, node.shares),
        )
        made = launch(pod, place, inherited=node.environment, python=node.python, cwd=node.cwd)
        if not shutil.which(made.argv[0], path=made.env["PATH"]):
            raise CannotStart(f"{made.argv[0]}: no such program on this machine")
        return made

    async def _watch_over(self, process: PodProcess, ended: asyncio.Task[int]) -> bool:
        """Until the end, which deletion and deadline bring about; whether it was the deadline."""
        clock, view = asyncio.get_running_loop().time, self.view
        started, asked, late = clock(), None, False
        while not ended.done():
            grace, seconds = self._grace(clock() - started)
            if grace is not None:
                if asked is None:
                    asked, late = clock(), not view.ends
                    process.terminate()
                seconds = asked + grace - clock()
            if view.gone or (seconds is not None and seconds <= 0):
                process.kill()
                await asyncio.wait({ended})
            else:
                await view.news(seconds, until=ended)
        return late

    def _grace(self, up: float) -> tuple[float | None, float | None]:
        """Seconds of grace if the pod has to stop, else seconds until it will have to, if ever."""
        meta, spec = self.view.pod["metadata"], self.view.pod["spec"]
        if self.view.ends:
            return float(meta.get("deletionGracePeriodSeconds") or 0), None
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is None or up < deadline:
            return None, None if deadline is None else deadline - up
        return float(spec.get("terminationGracePeriodSeconds") or 0), None

    async def _report_running(self) -> None:
        pod, loopback, now = self.view.pod, self.node.loopback, datetime.now(UTC)
        own = volumes.address(pod, loopback)
        await self.view.report(
            lambda old: pod_status.running(old, main_container(pod), address=own, now=now),
            annotations=volumes.annotations(pod, loopback),
        )

    async def _report_end(
        self, code: int, message: str, reason: str = "", *, late: bool = False
    ) -> None:
        end = partial(
            pod_status.terminated,
            container=main_container(self.view.pod),
            code=code,
            message=message,
            now=datetime.now(UTC),
            reason=reason,
            late=late,
        )
        await self.view.report(end)

    def _message(self, code: int, tail: str) -> str:
        """What the termination log holds, or the log's end where the pod asked for that."""
        text = ""
        with contextlib.suppress(OSError), self.folders.termination_log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - pod_status.MESSAGE_BYTES))
            text = file.read(pod_status.MESSAGE_BYTES).decode(errors="replace")
        policy = main_container(self.view.pod).get("terminationMessagePolicy")
        return tail if not text and code and policy == "FallbackToLogsOnError" else text

    def _on_line(self, line: str) -> None:
        self.node.on_line(self.view.pod["metadata"].get("labels") or {}, line)


def _notes(pod: Body) -> list[str]:
    """What of `pod` is not run here, for its log."""
    spec, main = pod["spec"], main_container(pod)["name"]
    left_out = {
        "init containers": [c["name"] for c in spec.get("initContainers") or []],
        "sidecars": [c["name"] for c in spec["containers"] if c["name"] != main],
    }
    return [
        f"ddpjob: {kind} are not run on this machine: {', '.join(names)}"
        for kind, names in left_out.items()
        if names
    ]
