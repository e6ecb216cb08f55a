"""`ddpjob update`: a job goes on with other code, arguments or variables."""

from pathlib import Path
from typing import Annotated

import typer

from ddpjob.cli import job_options
from ddpjob.cli.exits import Exit, refuse_finished
from ddpjob.cli.options import Place, Printed, Target, plain_name
from ddpjob.cli.output import note, tell
from ddpjob.errors import InvalidJob


def update(
    ctx: typer.Context,
    name: Target,
    place: Place,
    code: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to send. By default the code stays."),
    ] = None,
    code_include: job_options.Included = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Variable of the ranks. May be repeated."),
    ] = None,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback",
            help="Wait for a step, and take the update back if the ranks fail before it.",
        ),
    ] = False,
    output: Printed = None,
) -> None:
    """Go on with other code, arguments or variables: new processes in the same pods.

    Ranks have their grace period to save before. This is no failure, and those of before count no
    more. Words after -- replace the arguments of the script, which stays, as does -m MODULE:

    ddpjob update llama --code . -- --lr 1e-4

    A variable that the job did not have, and code where it had none, take new pods. For all else,
    such as another image, there is ddpjob rerun.
    """
    from ddpjob.code.archive import pack

    words = ctx.meta.get(job_options.SCRIPT_ARGS)
    if code is None and words is None and not env:
        raise InvalidJob(
            "--code", "name what is to change: --code DIR, --env NAME=VALUE or -- ARGS"
        )
    job = place.client().job(plain_name(name))
    refuse_finished(job, f"ddpjob rerun {job.name}{place.flags}")
    archive = pack(code, names=code_include or ()) if code else None
    pairs = dict(job_options.pair(text, "--env") for text in env or ())
    before = job.body
    job = job.update(code=archive, script_args=words, env=pairs)
    is_same = job.body["metadata"].get("generation") == before["metadata"].get("generation")
    tell(job, "is as it was" if is_same else "is updated", output)
    if rollback:
        from ddpjob.client.rollback import watch_rollback

        verdict = watch_rollback(job, before)
        note(f"{job.name} {verdict.words}{'; it is taken back' if verdict.kind == 'back' else ''}")
        raise typer.Exit(Exit.OK if verdict.kind == "kept" else Exit.JOB_FAILED)
