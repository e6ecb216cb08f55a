"""Runs on this machine what the options of `submit` and `run` ask for."""

from pathlib import Path
from typing import Any

import typer

from ddpjob.cli.asked import Asked
from ddpjob.cli.exits import Exit
from ddpjob.cli.say import note
from ddpjob.cli.session import NO_IMAGE, Local, start
from ddpjob.errors import InvalidJob


def run_here(
    asked: Asked,
    *,
    directory: Path = Path(".ddpjob"),
    logs: bool = True,
    grace: float = 10.0,
    keep: bool = False,
    as_json: bool = False,
) -> None:
    """Run the job, and end the command with its exit code."""
    try:
        code, config_maps, ignored = asked.folder, asked.config_maps, asked.ignored
        local = Local(directory, logs, grace, keep, code, config_maps, as_json, ignored)
        job = job_here(asked)
    except InvalidJob as error:
        note(f"error: {error}")
        raise typer.Exit(Exit.USAGE) from None
    raise typer.Exit(start(job, asked.title, local))


def job_here(asked: Asked) -> Any:
    """Return the job as it is run here. Its name is the script's, so that its volumes stay."""
    job = asked.job(**({"image": NO_IMAGE} if asked.base is None else {}))
    metadata = job.get("metadata") if isinstance(job, dict) else None
    if isinstance(metadata, dict) and isinstance(metadata.get("generateName"), str):
        metadata["name"] = metadata.pop("generateName").rstrip("-")
    return job
