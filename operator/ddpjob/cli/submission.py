"""Creates the job that the options of `submit` ask for, or says what it would create."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import typer

from ddpjob import api
from ddpjob.cli import objects
from ddpjob.cli.asked import Asked, check_is_sent, in_namespace
from ddpjob.cli.endings import detached
from ddpjob.cli.exits import Exit, end_with
from ddpjob.cli.logs import Shown, print_logs
from ddpjob.cli.options import Form, Place
from ddpjob.cli.say import note
from ddpjob.client import why
from ddpjob.client.build import problems
from ddpjob.client.client import Client
from ddpjob.client.creation import with_code
from ddpjob.client.generated import named
from ddpjob.client.job import Job
from ddpjob.client.jobfile import JobFile
from ddpjob.client.selection import Query
from ddpjob.code.archive import CodeArchive, in_bytes, pack
from ddpjob.errors import JobTimeout
from ddpjob.json_depth import Body

STDOUT = 1
# Seconds without any status after which it is said that no operator has taken the job.
TAKEN_SECONDS = 10.0


def step(label: str, text: str) -> None:
    """Print how far a submission is: `job       team-a/train-k7x2p created: …`."""
    note(f"{label:<9} {text}")


class Submission:
    """One job to create."""

    def __init__(self, asked: Asked, place: Place, output: Form | None) -> None:
        self._asked, self._place, self._output = asked, place, output

    def print(self) -> None:
        """Print the objects that would be created."""
        objects.show_new(self._objects(), self._output)
        self._tell_code(created=False)

    def print_here(self) -> None:
        """Print the job as `ddpjob run` would run it."""
        from ddpjob.cli.session import job_here

        job = job_here(self._asked)
        end_with(problems(job))
        if self._asked.ignored:
            note(f"of no effect on this machine: {', '.join(self._asked.ignored)}")
        objects.show_new([*self._asked.config_maps, job], self._output)

    def rehearse(self) -> None:
        """Have the API server check the objects, and print what it says of the job."""
        job = self._place.client().submit(self._file, code=self._archive, dry_run=True)
        self._tell_code(created=False)
        step("job", f"{job.namespace}/{job.name} would be created: {_size(self._job)}")
        if self._output is not None:
            objects.show([job], self._output, single=True)

    def create(self, watch: bool | None) -> None:
        """Create the job, and look on or not."""
        client = self._place.client()
        self._tell_code(created=True)
        try:
            job = client.submit(self._file, code=self._archive)
        except KeyboardInterrupt as stopped:
            left = getattr(stopped, "__notes__", ("no job was created",))
            note("", *(f"stopped: {words}" for words in left))
            raise typer.Exit(Exit.DETACHED) from None
        step("job", f"{job.namespace}/{job.name} created: {_size(self._job)}")
        if self._output is not None:
            objects.show([job], self._output, single=True)
        if self._output is None and watch is None and not os.isatty(STDOUT):
            place = replace(self._place, namespace=job.namespace)
            note(f"  next: ddpjob logs -f {job.name}{place.flags}")
        if watch if watch is not None else self._output is None and os.isatty(STDOUT):
            raise typer.Exit(Onlooker(client, job, self._place).look_on())

    @cached_property
    def _archive(self) -> CodeArchive | None:
        """Return the archive of the folder to send, if there is one. Raises InvalidJob."""
        folder = self._asked.folder
        if folder is None:
            return None
        script = self._asked.script  # if it is not there, that is said first
        names = self._asked.given["code_include"] or ()
        archive = pack(folder, names=names)
        if archive.note:
            note(archive.note)
        check_is_sent(archive.files, script)
        return archive

    @cached_property
    def _job(self) -> Body:
        """Return the object of the job, checked. Prints what is wrong with it, and ends then."""
        job = self._asked.job()
        end_with(problems(with_code(job, self._archive) if _has_spec(job) else job))
        in_namespace(job, self._place.namespace)
        return dict(job)

    @property
    def _file(self) -> JobFile:
        """Return the job, with the ConfigMaps of the job file that go with it."""
        return JobFile(self._job, self._asked.config_maps)

    def _objects(self) -> list[Body]:
        """Return the ConfigMaps and the job, in the namespace that was named.

        A name is made up for a job without one, because `kubectl apply` refuses `generateName`.
        """
        maps = self._archive.config_maps() if self._archive else self._asked.config_maps
        job = named(with_code(self._job, self._archive))
        namespace = why.text(job, "metadata", "namespace") or self._place.namespace
        where = {"namespace": namespace} if namespace else {}
        return [{**body, "metadata": {**body["metadata"], **where}} for body in (*maps, job)]

    def _tell_code(self, *, created: bool) -> None:
        archive = self._archive
        if archive is None:
            if found := self._asked.config_maps:
                step("code", f"that of the job file, {_listed(found)}")
            elif created and self._asked.given["module"]:
                step("code", f"none sent: {self._asked.given['module']} is not in this folder")
            return
        files = f"{len(archive.files)} file{'s' if len(archive.files) > 1 else ''}"
        sizes = f"{in_bytes(archive.size)} -> {in_bytes(len(archive.data))}"
        state = ", dirty" if archive.is_dirty else ""
        commit = f" (git {archive.revision[:7]}{state})" if archive.revision else ""
        step("code", f"{files}, {sizes}, {_listed(archive.config_maps())}{commit}")


def _listed(config_maps: Sequence[Body]) -> str:
    first, more = config_maps[0]["metadata"]["name"], len(config_maps) - 1
    return f"ConfigMap {first}" + (f" and {more} more" if more else "")


def _has_spec(job: Any) -> bool:
    return isinstance(job, dict) and isinstance(job.get("spec"), dict)


def _size(job: Body) -> str:
    """Return how large the job is: `2 nodes x 8 GPUs`."""
    spec = api.DDPJob.parse({**job, "metadata": {"name": "any"}}).spec
    nodes = f"{spec.nnodes} node{'s' if spec.nnodes > 1 else ''}"
    count, what = (spec.gpus, "GPU") if spec.gpus else (spec.processes_per_node, "process")
    plural = "" if count == 1 else "es" if what == "process" else "s"
    return f"{nodes} x {count} {what}{plural}"


class Onlooker:
    """Shows one job that has just been created."""

    def __init__(self, client: Client, job: Job, place: Place) -> None:
        elsewhere = job.namespace != client.namespace  # as a job file may have it
        self._place = replace(place, namespace=job.namespace) if elsewhere else place
        self._job = job
        self._began = time.monotonic()
        self._shown: tuple[str, str] | None = None

    def look_on(self) -> Exit:
        """Show the job until it is finished, and return the exit code that stands for its end.

        Raises JobRefused once its pods have been refused for some seconds.
        """
        name = self._job.name
        try:
            self._until_taken()
            job = self._job.until(self._is_settled, refused_after=why.REFUSED_SECONDS)
            if _stays_suspended(job):
                note(f"it starts with: ddpjob resume {name}{self._place.flags}")
                return Exit.OK
            # Of a job that has finished meanwhile: all lines, or those of its first failure.
            return print_logs(self._place, name, Shown(Query(follow=True)))
        except KeyboardInterrupt:
            return detached(self._job, self._place, f"logs -f {name}")

    def _until_taken(self) -> None:
        """Wait for the operator, and say so if it does not come."""
        try:
            self._job.until(lambda job: bool(job.body.get("status")), timeout=TAKEN_SECONDS)
        except JobTimeout:
            self._step("pending", "no operator has taken the job yet: see ddpjob doctor")

    def _is_settled(self, job: Job) -> bool:
        """Show the job's state, once for each change, and return whether it runs or never will."""
        words = job.reason
        if job.state == "Running":
            words = f"attempt {job.attempt}"
        elif nodes := why.text(job.body, "status", "summary", "nodes"):
            words = f"{nodes} nodes" + (f": {words}" if words else "")
        if job.state == "Suspended" and not _stays_suspended(job):
            return False
        if job.body.get("status") and self._shown != (job.state, words):
            self._shown = job.state, words
            self._step(job.state.lower(), words)
        return job.is_finished or job.state in ("Running", "Suspended")

    def _step(self, label: str, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        note(f"{label:<9} {seconds // 60}:{seconds % 60:02}  {text}".rstrip())


def _stays_suspended(job: Job) -> bool:
    """Return whether a suspended job waits for its user.

    Until its code is there, a new job is suspended, and its status may still say so afterwards.
    """
    return job.state == "Suspended" and bool(job.body["spec"].get("suspend"))
