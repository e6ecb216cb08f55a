"""`ddpjob submit`: makes a job of a script, and creates it."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob import why
from ddpjob.cli import job_options
from ddpjob.cli.exits import Exit, detached, end_with
from ddpjob.cli.job_options import Asked, Here, in_namespace
from ddpjob.cli.options import Place
from ddpjob.cli.output import STDOUT, Form, note, show_jobs, show_new
from ddpjob.errors import InvalidJob, JobTimeout
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob.client.job import Job
    from ddpjob.code.archive import CodeArchive

# Seconds without any status after which it is said that no operator has taken the job.
TAKEN_SECONDS = 10.0


def submit(
    ctx: typer.Context,
    asked: Asked,
    place: Place,
    code_include: job_options.Included = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run it on this machine: see ddpjob run.")
    ] = False,
    dry_run: job_options.Rehearsal = None,
    watch: Annotated[
        bool | None,
        typer.Option(
            "--watch/--detach",
            help="Stay, and show the job and the log of rank 0. By default on a terminal.",
        ),
    ] = None,
    output: Annotated[
        Form | None,
        typer.Option("--output", "-o", help="Print the job as json, yaml or name, and detach."),
    ] = None,
) -> None:
    """Train with a script on the cluster: send its folder, and create the job.

    ddpjob submit train.py --nnodes 2 --gpus 8 --image torch:2.9 -- --lr 3e-4

    Ctrl-C detaches: the job runs on. With --watch the exit code is 0 if the job succeeds and 1 if
    it fails.
    """
    asked = asked.within(ctx)
    submission = Submission(asked, place, output, code_include or ())
    if local and dry_run is not None:
        submission.print_here()
    elif local:
        from ddpjob.cli.local import run_here

        run_here(asked, Here(output="json" if output == "json" else "text"))
    elif dry_run == "client":
        submission.print()
    else:
        submission.create(watch, dry_run=dry_run is not None)


def step(label: str, text: str) -> None:
    """Print how far a submission is: `job       team-a/train-k7x2p created: …`."""
    note(f"{label:<9} {text}")


class Submission:
    """One job to create."""

    def __init__(
        self, asked: Asked, place: Place, output: Form | None, included: Sequence[str]
    ) -> None:
        self._asked, self._place, self._output, self._included = asked, place, output, included

    def print(self) -> None:
        """Print the objects that would be created, in the namespace that was named.

        A name is made up for a job without one, because `kubectl apply` refuses `generateName`.
        """
        from ddpjob.client.creation import with_code
        from ddpjob.client.jobfile import named

        maps = self.archive.config_maps() if self.archive else self._asked.config_maps
        job = named(with_code(self._job, self.archive))
        namespace = why.text(job, "metadata", "namespace") or self._place.namespace
        where = {"namespace": namespace} if namespace else {}
        bodies = [{**body, "metadata": {**body["metadata"], **where}} for body in (*maps, job)]
        show_new(bodies, self._output)
        self._tell_code(created=False)

    def print_here(self) -> None:
        """Print the job as `ddpjob run` would run it."""
        from ddpjob.cli.local import job_here
        from ddpjob.client.build import problems

        job = job_here(self._asked)
        end_with(problems(job))
        if self._asked.ignored:
            note(f"of no effect on this machine: {', '.join(self._asked.ignored)}")
        show_new([*self._asked.config_maps, job], self._output)

    def create(self, watch: bool | None, *, dry_run: bool) -> None:
        """Create the job, and look on or not; or have the API server check the objects."""
        job = self.submit(dry_run=dry_run)
        if dry_run:
            return
        place = self.place_of(job)
        if watch is None:
            watch = self._output is None and os.isatty(STDOUT)
            if self._output is None and not watch:
                note(f"  next: ddpjob logs -f {job.name}{place.flags}")
        if watch:
            raise typer.Exit(Onlooker(job, place).look_on())

    def place_of(self, job: "Job") -> Place:
        """Return where the job is: a job file may have another namespace than the context."""
        is_same = job.namespace == self._place.client().namespace
        return self._place if is_same else replace(self._place, namespace=job.namespace)

    def submit(self, *, dry_run: bool = False) -> "Job":
        """Create the job, say so, and return it; or have the API server check the objects."""
        from ddpjob.client.jobfile import JobFile

        self._tell_code(created=not dry_run)
        try:
            file = JobFile(self._job, self._asked.config_maps)
            job = self._place.client().submit(file, code=self.archive, dry_run=dry_run)
        except KeyboardInterrupt as stopped:
            left = getattr(stopped, "__notes__", ("no job was created",))
            note("", *(f"stopped: {words}" for words in left))
            raise typer.Exit(Exit.DETACHED) from None
        verb = "would be created" if dry_run else "created"
        step("job", f"{job.namespace}/{job.name} {verb}: {_size(job)}")
        if self._output is not None:
            show_jobs([job], self._output, single=True)
        return job

    @cached_property
    def archive(self) -> "CodeArchive | None":
        """Return the archive of that folder. Raises InvalidJob."""
        from ddpjob.code.archive import pack

        if self._asked.folder is None:
            return None
        script = self._asked.script  # if it is not there, that is said first
        archive = pack(self._asked.folder, names=self._included)
        if archive.note:
            note(archive.note)
        if script is not None and script not in archive.files:
            rule = f"{script!r} is not sent: .gitignore or .ddpjobignore leaves it out"
            raise InvalidJob("FILE.py", rule, script, f"--code-include {quote(script)}")
        return archive

    @cached_property
    def _job(self) -> Body:
        """Return the object of the job, checked. Prints what is wrong with it, and ends then."""
        from ddpjob.client.build import problems
        from ddpjob.client.creation import with_code

        job = self._asked.job()
        has_spec = isinstance(why.part(job, "spec"), dict)
        end_with(problems(with_code(job, self.archive) if has_spec else job))
        in_namespace(job, self._place.namespace)
        return dict(job)

    def _tell_code(self, *, created: bool) -> None:
        from ddpjob.code.archive import in_bytes

        archive = self.archive
        if archive is None:
            if found := self._asked.config_maps:
                step("code", f"that of the job file, {_listed(found)}")
            elif created and self._asked.module:
                step("code", f"none sent: {self._asked.module} is not in this folder")
            return
        files = f"{len(archive.files)} file{'s' if len(archive.files) > 1 else ''}"
        sizes = f"{in_bytes(archive.size)} -> {in_bytes(len(archive.data))}"
        state = ", dirty" if archive.is_dirty else ""
        commit = f" (git {archive.revision[:7]}{state})" if archive.revision else ""
        step("code", f"{files}, {sizes}, {_listed(archive.config_maps())}{commit}")


def _listed(config_maps: Sequence[Body]) -> str:
    first, more = config_maps[0]["metadata"]["name"], len(config_maps) - 1
    return f"ConfigMap {first}" + (f" and {more} more" if more else "")


def _size(job: "Job") -> str:
    """Return how large the job is: `2 nodes x 8 GPUs`."""
    nodes = f"{job.nnodes} node{'s' if job.nnodes > 1 else ''}"
    if gpus := job.gpus_per_node:
        return f"{nodes} x {gpus} GPU{'s' if gpus > 1 else ''}"
    processes = job.processes_per_node
    return f"{nodes} x {processes} process{'es' if processes > 1 else ''}"


class Onlooker:
    """Shows one job that has just been created."""

    def __init__(self, job: "Job", place: Place) -> None:
        self._job, self._place = job, place
        self._began = time.monotonic()
        self._shown: tuple[str, str] | None = None

    def look_on(self) -> Exit:
        """Show the job until it is finished, and return the exit code that stands for its end.

        Raises JobRefused once its pods have been refused for some seconds.
        """
        from ddpjob.cli.logs import Shown, print_logs  # slow to import, for who completes options
        from ddpjob.client.follow import Query

        name = self._job.name
        try:
            job = self.until_it_runs(refused_after=why.REFUSED_SECONDS)
            if _stays_suspended(job):
                note(f"it starts with: ddpjob resume {name}{self._place.flags}")
                return Exit.OK
            # Of a job that has finished meanwhile: all lines, or those of its first failure.
            return print_logs(self._place, name, Shown(Query(follow=True)))
        except KeyboardInterrupt:
            return detached(self._job, self._place, f"logs -f {name}{self._place.flags}")

    def until_it_runs(self, *, refused_after: float | None = None) -> "Job":
        """Show the job's states until it runs, or never will, and return it. Raises ClusterError.

        Say so if no operator takes it. Raises JobRefused after so many seconds of refused pods.
        """
        try:
            self._job.until(lambda job: bool(job.body.get("status")), timeout=TAKEN_SECONDS)
        except JobTimeout:
            self._step("pending", "no operator has taken the job yet: see ddpjob doctor")
        return self._job.until(self._is_settled, refused_after=refused_after)

    def _is_settled(self, job: "Job") -> bool:
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
        return job.is_finished or job.state in ("Running", "Idle", "Suspended")

    def _step(self, label: str, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        note(f"{label:<9} {seconds // 60}:{seconds % 60:02}  {text}".rstrip())


def _stays_suspended(job: "Job") -> bool:
    """Return whether a suspended job waits for its user.

    Until its code is there, a new job is suspended, and its status may still say so afterwards.
    """
    return job.state == "Suspended" and bool(job.body["spec"].get("suspend"))
