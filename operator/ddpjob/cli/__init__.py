"""The command line: `ddpjob …`, also as `kubectl ddpjob …`."""

import typer

from ddpjob.cli import crd, run, uninstall, validate

app = typer.Typer(
    name="ddpjob",
    help="Distributed PyTorch on Kubernetes, or on this machine.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("crd")(crd.crd)
app.command("uninstall")(uninstall.uninstall)


def main() -> None:
    """Entry point of the console scripts."""
    app()
