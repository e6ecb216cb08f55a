"""`ddpjob submit`: makes a job of a script, and creates it."""

from typing import Annotated, Any

import typer

from ddpjob.cli import program
from ddpjob.cli.options import Context, Form, Kubeconfig, Namespace, Place
from ddpjob.cli.program import DryRun
from ddpjob.cli.values import bad

# Files with these endings are no scripts.
JOB_FILES = (".yaml", ".yml", ".json")


def submit(
    ctx: typer.Context,
    file: program.File = None,
    module: program.Module = None,
    filename: program.JobFile = None,
    name: program.Name = None,
    label: program.Label = None,
    nnodes: program.Nnodes = None,
    gpus: program.Gpus = None,
    nproc_per_node: program.NprocPerNode = None,
    image: program.Image = None,
    image_pull_secret: program.PullSecret = None,
    cpu: program.Cpu = None,
    memory: program.Memory = None,
    code: program.Code = None,
    code_include: program.CodeInclude = None,
    checkpoint: program.Checkpoint = None,
    env: program.Env = None,
    env_file: program.EnvFile = None,
    env_from_secret: program.EnvFromSecret = None,
    hang_timeout: program.HangTimeout = None,
    max_restarts: program.MaxRestarts = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run it on this machine: see ddpjob run.")
    ] = False,
    dry_run: program.Rehearsal = None,
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
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Train with a script on the cluster: send its folder, and create the job.

    ddpjob submit train.py --nnodes 2 --gpus 8 --image torch:2.9 -- --lr 3e-4

    Ctrl-C detaches: the job runs on. With --watch the exit code is 0 if the job succeeds and 1 if
    it fails.
    """
    from ddpjob.cli.asked import Asked
    from ddpjob.cli.submission import Submission

    if file is not None and file.endswith(JOB_FILES):
        raise typer.BadParameter("a job file is named with -f", param_hint="FILE.py")
    if local:
        _refuse_here(ctx.params)
    elif dry_run and watch:
        raise bad("there is no job to watch with --dry-run", "--watch")
    asked = Asked.of(ctx)
    place = Place(namespace, context, kubeconfig)
    submission = Submission(asked, place, output)
    if local and dry_run is not None:
        submission.print_here()
    elif local:
        from ddpjob.cli.session import run_here

        run_here(asked, as_json=output is Form.JSON)
    elif dry_run is DryRun.CLIENT:
        submission.print()
    elif dry_run is DryRun.SERVER:
        submission.rehearse()
    else:
        submission.create(watch)


def _refuse_here(params: dict[str, Any]) -> None:
    """Raise BadParameter for an answer that this machine cannot give."""
    if params["dry_run"] is DryRun.SERVER:
        raise bad("there is no API server with --local", "--dry-run")
    if params["dry_run"] is None and params["output"] not in (None, Form.JSON):
        raise bad(f"must be json with --local, got {params['output']}", "--output")
