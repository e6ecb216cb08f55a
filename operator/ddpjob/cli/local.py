"""A run of a job on this machine: the operator's controller on an embedded cluster, with processes.

The verb is in run.py, which `--help` and completion import; this module is heavy.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from ddpjob import api, names, why
from ddpjob.api.base import quantity_value
from ddpjob.api.podtypes import Resources
from ddpjob.cli.exits import end_with, unsent
from ddpjob.cli.job_options import Asked, Here
from ddpjob.cli.live import LineDisplay, Records
from ddpjob.cli.output import close, say
from ddpjob.cli.validate import check
from ddpjob.client.creation import with_code
from ddpjob.client.display import Display
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, Resource
from ddpjob.cluster.logs import LineMaker, local_pod
from ddpjob.code.archive import CodeArchive
from ddpjob.code.saves import Saves
from ddpjob.controller.controller import Controller
from ddpjob.errors import AlreadyExists, DDPJobError, InvalidJob
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from ddpjob.local.gpus import MAKERS, Maker, Share, deal, gpus
from ddpjob.local.kubelet import Runner
from ddpjob.local.volumes import LOGS, SHARED, job_folder
from ddpjob.settings import Settings

# There is one job and no network, so progress can be polled and written often.
SETTINGS = Settings(progress_poll=0.5, progress_write=0.5, minor_status=0.2, backoff_first=0.1)
IGNORED = (
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "shm",
    "template",
    "master",
    "suspend",
    "spares",
    "elastic",
)
# This file is locked while the job runs. A folder that has it is ddpjob's.
LOCK = ".ddpjob-lock"
# No image is looked at, but every job names one.
NO_IMAGE = "none"
# In place of the archive of a job that names none. Nobody reads it.
NO_ARCHIVE = {"configMaps": ["none"], "sha256": "0" * 64}


def run_here(asked: Asked, here: Here, saves: Saves | None = None) -> NoReturn:
    """Run the job on this machine, and end the command with its exit code. Raises InvalidJob.

    With `saves` it runs again with each of them, and each node runs in a copy of their folder.
    """
    session = Session(asked, here, saves)
    with _alone(session.folder):
        _clear(session.folder, but={SHARED})
        code = asyncio.run(session.run())
        if not here.keep:
            _clear(session.folder, but={SHARED, LOGS})
    raise typer.Exit(code)


def job_here(asked: Asked) -> Any:
    """Return the job as it is run here. Its name is the script's, so that its volumes stay."""
    job = asked.job(NO_IMAGE if asked.base is None else None)
    metadata = why.part(job, "metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("generateName"), str):
        metadata["name"] = metadata.pop("generateName").rstrip("-")
    return job


class Session:
    """One run of a job, from its creation to its end, on a cluster of its own."""

    def __init__(self, asked: Asked, here: Here, saves: Saves | None = None) -> None:
        self._asked, self._here, self._job = asked, here, _checked(asked)
        self._saves, self._maps = saves, asked.config_maps
        if saves is not None:
            if saves.may_send(here.directory.resolve()):
                raise InvalidJob("--directory", "is watched: each line of a log would be a save")
            self._maps = tuple(saves.archive.config_maps())
            self._job = with_code(self._job, saves.archive)
        meta = self._job["metadata"]
        self.name, self.namespace = meta["name"], meta.setdefault("namespace", "default")
        self.folder = job_folder(here.directory, self.namespace, self.name)
        parsed = api.DDPJob.parse(self._job)
        self._shares = shares(parsed, os.environ)
        self._processes = parsed.spec.processes_per_node
        self._makers: dict[str, LineMaker] = {}  # of node rank 0's lines, by attempt
        self._cluster = LocalCluster(admit=_admit)
        self._runner = Runner(
            cluster=self._cluster,
            directory=here.directory,
            shares=self._shares,
            on_line=self._line,
            shutdown_seconds=here.grace,
            code=None if saves else asked.folder,
        )
        self._controller = Controller(self._cluster, settings=SETTINGS)
        self._signals: list[int] = []
        self._is_unread = False
        self._stop = asyncio.Event()
        self._display: Display = Records() if here.output == "json" else LineDisplay()
        self._status: dict[str, Any] = {}

    async def run(self) -> int:
        """Run the job, and return the exit code once no process of it runs any more."""
        for number in (signal.SIGINT, signal.SIGTERM):  # until the loop is closed
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)
        self._show(self._display.note, self._introduction())
        follow = asyncio.create_task(self._follow())
        play = asyncio.create_task(self._runner.run())
        control = asyncio.create_task(self._controller.run())
        wait = asyncio.create_task(self._stop.wait())
        send = asyncio.create_task(self._send_saves())
        tasks = (wait, send, control, follow, play)  # the controller first, or it would start anew
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            broken = [task for task in (send, control, follow, play) if task.done()]
        finally:
            for task in tasks:
                task.cancel()
                await asyncio.wait({task})
        for task in broken:
            task.result()
        return self._end()

    async def _follow(self) -> None:
        """Create the job, and show its changes until it is finished or cannot go on."""
        for config_map in self._maps:
            await self._cluster.create(CONFIGMAPS, self.namespace, config_map)
        # Nobody could resume it here: a queue's job is tried as it stands in its file.
        job = {**self._job, "spec": {**self._job["spec"], "suspend": False}}
        await self._cluster.create(DDPJOBS, self.namespace, job)
        async for event in self._cluster.watch(DDPJOBS, namespace=None, resource_version="0"):
            before, self._status = self._status, event.object.get("status") or {}
            was, now = Snapshot({"status": before}), Snapshot(event.object)
            if now.revision > was.revision:
                self._show(
                    self._display.note, f"{self.name} runs again, as revision {now.revision}"
                )
            elif self._status.get("restarts", 0) > before.get("restarts", 0):
                has_failed = self._status.get("failure") != before.get("failure")
                words = self._restart() if has_failed else [f"{self.name} restarts: {now.message}"]
                self._show(self._display.note, *words)
            self._show(self._display.job, now)
            if (now.state, was.state) == ("Idle", "Running"):
                self._show(self._display.note, f"{self.name}: {now.message}")
            if self._status.get("state") in api.FINISHED or self._refusal():
                return

    async def _send_saves(self) -> None:
        """Have the job run again with each save in its folder; until cancelled."""
        loop, is_over = asyncio.get_running_loop(), threading.Event()

        def send(archive: CodeArchive) -> None:
            asyncio.run_coroutine_threadsafe(self._update(archive), loop).result()

        def tell(error: DDPJobError) -> None:
            loop.call_soon_threadsafe(self._show, self._display.note, *unsent(error))

        try:
            if self._saves is None:
                await self._stop.wait()
            else:
                await asyncio.to_thread(self._saves.send, send, tell, is_over)
        finally:
            is_over.set()

    async def _update(self, archive: CodeArchive) -> None:
        for config_map in archive.config_maps():
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(CONFIGMAPS, self.namespace, config_map)
        body = {"spec": {"code": archive.spec()}}
        await self._cluster.patch(DDPJOBS, self.namespace, self.name, body)

    def _line(self, labels: Mapping[str, str], line: str) -> None:
        if not self._here.logs or labels.get(names.RANK_LABEL) != "0":
            return
        attempt = labels[names.ATTEMPT_LABEL]
        if attempt not in self._makers:
            pod = local_pod(self.name, int(attempt), 0)
            self._makers[attempt] = LineMaker(pod, self._processes, from_the_beginning=True)
        made = self._makers[attempt].line(line.encode(errors="replace"))
        if not made.rank:
            self._show(self._display.line, made)

    def _show(self, show: Callable[..., None], *shown: Any) -> None:
        """Call `show`; if nobody reads any more (`| head`), end as after SIGPIPE."""
        try:
            show(*shown)
        except BrokenPipeError:
            close()
            self._is_unread = True
            self._stop.set()

    def _introduction(self) -> str:
        lines = [f"logs in {self.folder / LOGS}"]
        if self._asked.folder:
            copied = ", copied for each node" if self._saves else ""
            lines.append(f"code in {self._asked.folder}{copied}")
        if self._asked.config_maps:
            lines.append("code of the job file, unpacked for each node")
        spec = self._job["spec"]
        unset = (NO_IMAGE, False)
        fields = [name for name in IGNORED if spec.get(name, NO_IMAGE) not in unset]
        if ignored := [*fields, *self._asked.ignored]:
            lines.append(f"of no effect on this machine: {', '.join(ignored)}")
        if "resources" in self._job["spec"]:
            lines.append("resources set the number of threads, and are not enforced")
        return "; ".join(filter(None, [*lines, listed_gpus(self._shares)]))

    def _interrupt(self, number: int) -> None:
        """Stop the session; at the second signal, kill its processes."""
        self._signals.append(number)
        self._stop.set()
        if len(self._signals) > 1:
            self._runner.kill()
        else:
            self._show(self._display.note, "stopping; a second signal kills at once")

    def _end(self) -> int:
        """Print how the job ended, and return the exit code."""
        if self._signals:
            step = why.text(self._status, "summary", "step")
            where = f" at step {step}" if step else ""
            say(f"{self.name} interrupted{where}; logs in {self.folder / LOGS}", err=True)
            return 128 + self._signals[0]
        if self._is_unread:
            return 128 + signal.SIGPIPE
        state = self._status.get("state")
        if state == "Succeeded":
            return 0
        end, *details = self._failure() if state == "Failed" else [self._refusal() or f"is {state}"]
        say(f"{self.name} {end}", *details, err=True)
        return 1

    def _failure(self) -> list[str]:
        """Return lines with the reason why the job failed, and with the primary failure."""
        end = f"failed: {why.message(self._status)}".rstrip(": ")
        if not self._status.get("failure"):  # a deadline, and no rank that has failed
            return [end, f"  logs: {self.folder / LOGS}"]
        cause, *details = self._first_cause()
        return [end, f"  first cause: {cause}", *details]

    def _first_cause(self) -> list[str]:
        """Return lines with the rank, the reason, the log and the traceback of the last failure."""
        failure = self._status.get("failure") or {}
        rank, pod = failure.get("rank"), str(failure.get("pod"))
        who = f"pod {pod}" if rank is None else f"rank {rank}"
        log = f"{self.folder / LOGS / pod}.log"
        cause = f"{who}, {failure.get('reason', 'unknown')}: {failure.get('message', '')}"
        traceback = str(failure.get("traceback") or "").splitlines()
        return [cause, f"  log: {log}", *(f"    {line}" for line in traceback)]

    def _restart(self) -> list[str]:
        """Return lines with the reason of a restart. A traceback just printed is not repeated."""
        number = self._status.get("round", 0)
        where = f" in place, as round {number}" if number else ""
        cause, log, *traceback = self._first_cause()
        pod = str((self._status.get("failure") or {}).get("pod"))
        # Rank 0's lines are printed, and its pod may have other ranks.
        is_shown = self._here.logs and pod.endswith("-0") and self._processes == 1
        return [f"{self.name} restarts{where}: {cause}", log, *([] if is_shown else traceback)]

    def _refusal(self) -> str | None:
        accepted = why.condition(self._status, "Accepted")
        is_refused = accepted.get("status") == "False"
        return f"was not accepted: {accepted['message']}" if is_refused else None


def _checked(asked: Asked) -> Body:
    """Return the job as it is run here, checked."""
    job, spec = job_here(asked), None
    if asked.folder is not None and isinstance(spec := why.part(job, "spec"), dict):
        job = {**job, "spec": {**spec, "code": spec.get("code") or NO_ARCHIVE}}
    end_with(check(job))
    if asked.folder is None and job["spec"].get("code") and not asked.config_maps:
        rule = "is an archive that is not in the file: name the folder with the code, --code DIR"
        raise InvalidJob("spec.code", rule)
    kept = ("name", "namespace", "labels", "annotations")
    meta = {field: job["metadata"][field] for field in kept if job["metadata"].get(field)}
    # All nodes are this machine. If it was asleep, they have not heard each other.
    spec = {**job["spec"], "nodeTimeoutSeconds": 0, "spares": 0}
    spec.pop("elastic", None)
    return {**job, "metadata": meta, "spec": spec}


def _admit(resource: Resource, body: Body) -> Body:
    """Check a DDPJob and fill in its defaults, as the API server does by the schema."""
    if resource != DDPJOBS:
        return body
    for problem in api.validate(body):
        raise problem
    return dict[str, Any](api.with_defaults(body))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the job's folder for this process alone.

    The folder is cleared later, so it must be empty, ddpjob's own, or have nothing but volumes.
    Volumes stay, because they may have the user's data.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidJob("--directory", f"{error.filename}: {error.strerror}") from None
    found = {path.name for path in folder.iterdir()}
    if not found <= {SHARED} and LOCK not in found:
        raise InvalidJob("--directory", f"{folder} has files that ddpjob did not create")
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rule = f"a job of this name is running in {folder.parent}"
            raise InvalidJob("metadata.name", rule) from None
        yield


def _clear(folder: Path, *, but: set[str]) -> None:
    """Remove what earlier pods have left in the job's folder."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in but:
            shutil.rmtree(path, ignore_errors=True)


def shares(job: api.DDPJob, environment: Mapping[str, str], root: Path = Path("/")) -> list[Share]:
    """Return the GPUs of each node, by its rank.

    Raises InvalidJob if the nodes ask for more GPUs than this machine has.
    """
    spec = job.spec
    first = spec.master and spec.master.resources or spec.resources
    wanted = [_wanted(first), *[_wanted(spec.resources)] * (spec.nnodes - 1)]
    kinds = [name for node in wanted for name in node]
    dealt: dict[Maker, list[tuple[str, ...]]] = {}
    for maker in MAKERS:
        counts = [sum(node[name] for name in node if _is_of(maker, name)) for node in wanted]
        if any(counts):
            devices = gpus(maker, environment, root)
            if sum(counts) > len(devices):
                name = next(name for name in kinds if _is_of(maker, name))
                rule = f"must be at most {len(devices)} for all nodes together on this machine"
                if setting := environment.get(maker.variable):
                    rule += f" ({maker.variable} is {setting!r})"
                raise InvalidJob(_path(job, name), f"{rule}, got {sum(counts)} in all")
            dealt[maker] = deal(devices, counts)
    for name in kinds:
        if not any(_is_of(maker, name) for maker in MAKERS):
            rule = "GPUs of this kind cannot be given to the nodes of a local run"
            raise InvalidJob(_path(job, name), rule)
    return [{maker: parts[rank] for maker, parts in dealt.items()} for rank in range(spec.nnodes)]


def listed_gpus(dealt: Sequence[Share]) -> str:
    """Return the GPUs of each node as a line of text; empty if no node has a GPU."""
    nodes = [
        f"node {rank} has {','.join(devices)}"
        for rank, share in enumerate(dealt)
        for devices in share.values()
        if devices
    ]
    return f"GPUs: {', '.join(nodes)}" if nodes else ""


def _wanted(resources: Resources) -> dict[str, int]:
    """Return the number of GPUs that a node asks for, by the name of the resource."""
    limits = resources.limits or {}
    counts = {name: int(quantity_value(limits[name])) for name in limits if names.is_gpu(name)}
    return {name: count for name, count in counts.items() if count > 0}


def _is_of(maker: Maker, resource: str) -> bool:
    return resource.partition("/")[0] == maker.domain


def _path(job: api.DDPJob, resource: str) -> str:
    of_all = resource in (job.spec.resources.limits or {})
    return f"spec.{'' if of_all else 'master.'}resources.limits[{resource}]"
