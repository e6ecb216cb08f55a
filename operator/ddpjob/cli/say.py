"""What the commands print. The text may quote anybody; a pod's log is in live.py."""

import typer

from ddpjob.text import printable


def say(*lines: str, err: bool = False) -> None:
    """Print these lines, each of them as one."""
    for line in lines:
        typer.echo(printable(line), err=err)
