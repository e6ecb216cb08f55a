"""`ddpjob run --local`: the operator's controller on an embedded cluster, with local processes."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TextIO

import typer

from ddpjob import api, names
from ddpjob.cli.files import documents
from ddpjob.cli.gpus import describe, shares
from ddpjob.cli.live import Display, Screen, Status, display
from ddpjob.cli.records import RunOutput, records
from ddpjob.cli.say import say
from ddpjob.cli.validate import check
from ddpjob.cluster import DDPJOBS, PODS, Resource
from ddpjob.cluster.local import LocalCluster
from ddpjob.controller.controller import Controller
from ddpjob.errors import InvalidJob, NotFound
from ddpjob.json_depth import Body
from ddpjob.plan.observed import MAX_TEXT
from ddpjob.plan.podrecord import pod_record
from ddpjob.plan.termination import read_termination
from ddpjob.runner import Runner
from ddpjob.runner.volumes import LOGS, SHARED, job_folder
from ddpjob.settings import Settings

# There is one job and no network, so progress can be polled and written often.
SETTINGS = Settings(progress_poll=0.5, progress_write=0.5, minor_status=0.2, backoff_first=0.1)
IGNORED = ("image", "imagePullPolicy", "imagePullSecrets", "shm", "template", "master")
# This file is locked while the job runs. A folder that has it is ddpjob's.
LOCK = ".ddpjob-lock"
# The volume at DDPJOB_RUN_DIR, and what an agent keeps there of a round that has failed.
RUN_FOLDER, FAILURE = "ddpjob-run", "failure.json"
BAD_INPUT = 2

P = ParamSpec("P")


def run(
    file: Annotated[str, typer.Argument(help="Job file, YAML or JSON. - is standard input.")],
    local: Annotated[
        bool, typer.Option("--local", help="Run the pods as processes of this machine.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Run the job under this name.")] = None,
    logs: Annotated[
        bool, typer.Option("--logs/--quiet", help="Print the output of rank 0, or do not.")
    ] = True,
    directory: Annotated[
        Path, typer.Option(help="Folder for logs, and for the folders that stand in for volumes.")
    ] = Path(".ddpjob"),
    grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds in which the ranks may save and exit after Ctrl-C or SIGTERM."
        ),
    ] = 10.0,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the pods' own folders (HOME, caches) after the run."),
    ] = False,
    output: Annotated[
        RunOutput, typer.Option("--output", "-o", help="Print lines of text, or objects of JSON.")
    ] = RunOutput.TEXT,
) -> None:
    """Run a job on this machine, with the restarts and the progress that it has on a cluster.

    The exit code is 0 if the job succeeded, and 1 if it failed. It is 2 if the file is invalid, or
    asks for GPUs that this machine does not have. It is 130 after Ctrl-C, and 143 after SIGTERM. A
    second Ctrl-C kills all processes at once.
    """
    if not local:
        say(f"--local is missing; to run the job on a cluster: kubectl apply -f {file}", err=True)
        raise typer.Exit(BAD_INPUT)
    with contextlib.ExitStack() as held:
        try:
            job = _read(file, name)
            as_json = output is RunOutput.JSON
            session = Session(job, directory, logs=logs, grace=grace, as_json=as_json)
            held.enter_context(_alone(session.folder))
        except InvalidJob as error:
            _refuse(file, error)
        except OSError as error:
            _refuse(file, InvalidJob("--directory", f"{error.filename}: {error.strerror}"))
        _clear(session.folder, but={SHARED})
        code = asyncio.run(session.run())
        if not keep:
            _clear(session.folder, but={SHARED, LOGS})
    raise typer.Exit(code)


def _refuse(file: str, *problems: Exception) -> NoReturn:
    for problem in problems:
        say(f"{file}: {problem}", err=True)
    raise typer.Exit(BAD_INPUT) from None


class Session:
    """One run of a job, from its creation to its end, on a cluster of its own."""

    def __init__(
        self, job: Body, directory: Path, *, logs: bool, grace: float, as_json: bool = False
    ) -> None:
        self._job, self._logs, self._as_json = job, logs, as_json
        meta = job["metadata"]
        self.name, self.namespace = meta["name"], meta.setdefault("namespace", "default")
        self.folder = job_folder(directory, self.namespace, self.name)
        self._shares = shares(api.DDPJob.parse(job), os.environ)
        self._cluster = LocalCluster(admit=_admit)
        self._runner = Runner(
            self._cluster,
            directory=directory,
            shares=self._shares,
            waits_for_config_maps=False,
            on_line=self._line,
            shutdown_seconds=grace,
        )
        self._controller = Controller(self._cluster, settings=SETTINGS)
        self._signals: list[int] = []
        self._stop = asyncio.Event()
        self._display: Display
        self._status: Status = {}
        self._traceback: list[str] = []  # of the primary failure

    async def run(self) -> int:
        """Run the job, and return the exit code once no process of it runs any more."""
        shown = records() if self._as_json else display(self.name, Screen())
        with self._signal_handlers() as stop, shown as self._display:
            self._show(self._display.note, self._introduction())
            follow = asyncio.create_task(self._follow())
            play = asyncio.create_task(self._runner.run())
            control = asyncio.create_task(self._controller.run())
            wait = asyncio.create_task(stop.wait())
            tasks = (wait, control, follow, play)  # the controller first, or it would start anew
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                broken = [task for task in (control, follow, play) if task.done()]
            finally:
                for task in tasks:
                    task.cancel()
                    await asyncio.wait({task})
        for task in broken:
            task.result()
        return self._end()

    async def _follow(self) -> None:
        """Create the job, and show its changes until it is finished or cannot go on."""
        await self._cluster.create(DDPJOBS, self.namespace, self._job)
        async for event in self._cluster.watch(DDPJOBS, namespace=None, resource_version="0"):
            before, self._status = self._status, event.object.get("status") or {}
            if self._status.get("failure") != before.get("failure"):
                self._traceback = await self._read_traceback()
            if self._status.get("restarts", 0) > before.get("restarts", 0):
                self._show(self._display.note, *self._restart())
            self._show(self._display.status, self._status)
            if self._status.get("state") in (*api.FINISHED, "Suspended") or self._refusal():
                return

    def _line(self, labels: Mapping[str, str], line: str) -> None:
        if self._logs and labels.get(names.RANK_LABEL) == "0":
            self._show(self._display.line, "0", line)

    def _show(self, show: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        """Call `show`; if nobody reads any more (`| head`), end as after SIGPIPE."""
        try:
            show(*args, **options)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._interrupt(signal.SIGPIPE)

    def _introduction(self) -> str:
        lines = [f"logs in {self.folder / LOGS}"]
        ignored = [field for field in IGNORED if field in self._job["spec"]]
        if ignored:
            lines.append(f"of no effect on this machine: {', '.join(ignored)}")
        if "resources" in self._job["spec"]:
            lines.append("resources set the number of threads, and are not enforced")
        gpus = describe(self._shares)
        return "; ".join([*lines, gpus] if gpus else lines)

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[asyncio.Event]:
        """Yield the event that stops the session. SIGINT and SIGTERM set it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            yield self._stop
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

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
        if self._signals[:1] == [signal.SIGPIPE]:
            return 128 + signal.SIGPIPE  # nobody reads
        if self._signals:
            step = (self._status.get("summary") or {}).get("step")
            where = f" at step {step}" if step else ""
            say(f"{self.name} interrupted{where}; logs in {self.folder / LOGS}", err=True)
            return 128 + self._signals[0]
        state = self._status.get("state")
        if state == "Succeeded":
            return 0
        end, *details = self._failure() if state == "Failed" else [self._refusal() or f"is {state}"]
        say(f"{self.name} {end}", *details, err=True)
        return 1

    def _failure(self) -> list[str]:
        """Return lines with the reason why the job failed, and with the primary failure."""
        conditions = {c["type"]: c for c in self._status.get("conditions") or []}
        end = f"failed: {conditions.get('Failed', {}).get('message', '')}".rstrip(": ")
        if not self._status.get("failure"):  # a deadline, and no rank that has failed
            return [end, f"  logs: {self.folder / LOGS}"]
        cause, *details = self._first_cause()
        return [end, f"  first cause: {cause}", *details]

    def _first_cause(self) -> list[str]:
        """Return lines with the rank, the reason, the log and the traceback of the last failure."""
        failure = self._status.get("failure") or {}
        rank, reason = failure.get("rank", "?"), failure.get("reason", "unknown")
        log = f"{self.folder / LOGS / str(failure.get('pod'))}.log"
        cause = f"rank {rank}, {reason}: {failure.get('message', '')}"
        return [cause, f"  log: {log}", *(f"    {line}" for line in self._traceback)]

    def _restart(self) -> list[str]:
        """Return lines with the reason of a restart. A traceback just printed is not repeated."""
        number = self._status.get("round", 0)
        where = f" in place, as round {number}" if number else ""
        cause, log, *traceback = self._first_cause()
        pod = str((self._status.get("failure") or {}).get("pod"))
        is_shown = self._logs and pod.endswith("-0")  # rank 0's, whose lines are printed
        return [f"{self.name} restarts{where}: {cause}", log, *([] if is_shown else traceback)]

    async def _read_traceback(self) -> list[str]:
        """Return the lines of the traceback that the agent of the failed pod left, if it did."""
        name = str((self._status.get("failure") or {}).get("pod"))
        with contextlib.suppress(NotFound):
            pod = pod_record(await self._cluster.get(PODS, self.namespace, name))
            if pod and pod.live:  # it goes on, and its agent keeps what it would have ended with
                pod = replace(pod, message=_text(self.folder / name / RUN_FOLDER / FAILURE))
            summary = read_termination(pod) if pod else None
            return summary.traceback.splitlines() if summary else []
        return []

    def _refusal(self) -> str | None:
        for condition in self._status.get("conditions") or []:
            if condition["type"] == "Accepted" and condition["status"] == "False":
                return f"was not accepted: {condition['message']}"
        return None


def _text(path: Path) -> str:
    """The text of a termination message; empty where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(MAX_TEXT).decode(errors="replace")
    return ""


def _read(file: str, name: str | None) -> Body:
    """Return the one job in `file`, checked."""
    found = list(documents(file))
    if len(found) != 1:
        raise InvalidJob("(file)", f"must have exactly one object, got {len(found)}")
    job = found[0]
    if name is not None and isinstance(job, dict) and isinstance(job.get("metadata"), dict):
        job["metadata"]["name"] = name
    if problems := check(job):
        _refuse(file, *problems)
    kept = ("name", "namespace", "labels", "annotations")
    meta = {field: job["metadata"][field] for field in kept if field in job["metadata"]}
    # All nodes are this machine. If it was asleep, they have not heard each other.
    spec = {**job["spec"], "nodeTimeoutSeconds": 0}
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
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in folder.iterdir()}
    if not found <= {SHARED} and LOCK not in found:
        raise InvalidJob("--directory", f"{folder} has files that ddpjob did not create")
    with (folder / LOCK).open("w") as lock:
        if not _lock(lock):
            raise InvalidJob("metadata.name", f"a job of this name is running in {folder.parent}")
        yield


def _lock(file: TextIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _clear(folder: Path, *, but: set[str]) -> None:
    """Remove what earlier pods have left in the job's folder."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in but:
            shutil.rmtree(path, ignore_errors=True)
