"""`ddpjob dev`: trains, and once more with each save of a file, in the same pods."""

import os
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob.cli import job_options
from ddpjob.cli.delete import STDERR, STDIN
from ddpjob.cli.exits import Exit, detached, report, report_unforeseen, unsent
from ddpjob.cli.job_options import Asked, Here
from ddpjob.cli.options import Place, seconds
from ddpjob.cli.output import note
from ddpjob.errors import DDPJobError, InvalidJob

if TYPE_CHECKING:
    from ddpjob.cli.submit import Submission
    from ddpjob.code.archive import CodeArchive
    from ddpjob.code.saves import Saves

# Without another word, pods are kept for so long.
IDLE_SECONDS = 1800


def dev(
    ctx: typer.Context,
    asked: Asked,
    here: Here,
    place: Place,
    code_include: job_options.Included = None,
    local: Annotated[bool, typer.Option("--local", help="Run on this machine.")] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Keep the pods for so long after the ranks have ended. By default 30m.",
        ),
    ] = None,
    watch: Annotated[bool | None, typer.Option("--watch/--detach", hidden=True)] = None,
) -> None:
    """Train with a script, and again with each save of a file: new processes in the same pods.

    ddpjob dev train.py --nnodes 2 --gpus 8 --image torch:2.9 -- --lr 3e-4

    The options are those of ddpjob submit. The files are those that it sends. An error leaves the
    pods, unless --max-restarts says otherwise, and the next save tries again. The log of rank 0
    follows. Ctrl-C on a terminal asks whether the job is to be deleted. With --local each node runs
    in a copy of the files, and Ctrl-C ends the job.
    """
    from ddpjob.cli.submit import Submission
    from ddpjob.code.saves import Saves

    asked = asked.within(ctx)
    if (folder := asked.folder) is None:
        raise InvalidJob("--code", "name the folder whose files are watched: --code DIR")
    kept = IDLE_SECONDS if idle is None else round(idle)
    restarts = 0 if asked.max_restarts is None else asked.max_restarts
    asked = replace(asked, max_restarts=restarts, keep_seconds=kept)
    included = code_include or ()
    submission = Submission(asked, place, None, included)
    assert submission.archive
    saves = Saves(folder, included, submission.archive)
    if local:
        from ddpjob.cli.local import run_here

        run_here(asked, here, saves)
    raise typer.Exit(Loop(submission, saves).run())


class Loop:
    """One job, and the folder with its code."""

    def __init__(self, submission: "Submission", saves: "Saves") -> None:
        """Create the job."""
        from ddpjob.client.job import Job

        self._job, self._saves = submission.submit(), saves
        self._place = submission.place_of(self._job)
        self._apart = Job(self._place.client().connection.apart(), self._job.body)
        self._is_over = threading.Event()

    def run(self) -> Exit:
        """Show the job, and send what is saved, until the job ends or somebody has enough."""
        from ddpjob.cli.logs import Shown, print_logs
        from ddpjob.client.follow import Query

        threading.Thread(target=self._send, daemon=True).start()
        threading.Thread(target=self._tell_start, daemon=True).start()
        try:
            shown = Shown(Query(follow=True), raises=True)
            return print_logs(self._place, self._job.name, shown)
        except KeyboardInterrupt:
            pass
        finally:
            self._is_over.set()
            self._apart.close()
        return self._leave()

    def _tell_start(self) -> None:
        """Show how the job is until it runs: its log has nothing before."""
        from ddpjob.cli.submit import Onlooker

        with suppress(DDPJobError):  # the log ends by it
            Onlooker(self._apart, self._place).until_it_runs()

    def _send(self) -> None:
        """Send what is saved, until it is over. Nobody else sees an error of this thread."""
        try:
            self._saves.send(self._update, lambda error: note(*unsent(error)), self._is_over)
        except DDPJobError as error:
            report(error)
        except Exception as error:
            report_unforeseen(error)
        if not self._is_over.is_set():
            note("-- saves are not sent any more; the job runs on --")

    def _update(self, archive: "CodeArchive") -> None:
        self._job.update(code=archive)
        note("-- saved: sent --")

    def _leave(self) -> Exit:
        """Ask whether the job is to be deleted, where there is somebody to ask."""
        name = self._job.name
        if os.isatty(STDIN) and os.isatty(STDERR):
            note("")
            try:
                is_wanted = typer.confirm(f"delete {name} and its pods?", err=True)
            except typer.Abort:
                is_wanted = False
            if is_wanted:
                self._job.delete()
                note(f"{name} deleted")
                return Exit.DETACHED
        return detached(self._job, self._place, f"logs -f {name}{self._place.flags}")
