"""Decides how many processes each node of the DDPJob starts."""

from typing import Any

from pydantic import ValidationError

from ddpjob.api.podtypes import Resources
from ddpjob.api.spec import NPROC_WORDS, gpus
from ddpjob.convert.accelerate import command_of
from ddpjob.convert.fields import Fields, Notes
from ddpjob.convert.program import Program, number
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body


def gpus_of(resources: Any) -> int:
    """Return the number of GPUs in the limits; 0 if these are no resources."""
    try:
        return gpus(Resources.model_validate(resources or {}))
    except ValidationError:  # the check of the result has words for it
        return 0


def read_processes(source: Fields, name: str) -> int | str | None:
    """Take the processes of each node: a number, `auto`, `cpu` or `gpu`, or None if absent.

    Raises InvalidJob if the field is none of these.
    """
    value = source.take(name, object)
    count = number(value) if isinstance(value, str) else value
    if value in NPROC_WORDS or value is None:
        return value if isinstance(value, str) else None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise source.error(name, "must be auto, cpu, gpu or a number from 1", value)
    return count


def start_of(program: Program, spec: Body, declared: int | str, path: str, notes: Notes) -> Body:
    """Return `nprocPerNode` and `command` of the spec, each left out where the default fits.

    `declared` is what the object asks for at `path`: a number, `auto`, `cpu` or `gpu`. The
    program's own command line outranks it. Raises InvalidJob if the nodes cannot share its total.
    """
    gpu_count = gpus_of(spec.get("resources"))
    count = _share(program, spec["nnodes"], path)
    if count is None:
        count = _processes(program, declared, gpu_count, path, notes)
    default = max(1, gpu_count)
    found: Body = {} if count in (None, default) else {"nprocPerNode": count}
    command = command_of(program, spec["nnodes"] * (count or default))
    return found | ({"command": command} if command else {})


def _processes(
    program: Program, declared: int | str, gpu_count: int, path: str, notes: Notes
) -> int | None:
    if program.is_one_process:
        if isinstance(declared, int) and declared > 1:
            reason = "plain Python is one process on each node, and WORLD_SIZE counts the nodes"
            notes.changed(path, f"{declared}: {reason}")
        return 1 if gpu_count > 1 else None
    wanted: int | str = number(program.nproc) or program.nproc or declared
    if isinstance(wanted, str) and wanted not in NPROC_WORDS:
        notes.lost(path, "the command line has its processes from a variable: set nprocPerNode")
        wanted = declared
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        notes.lost(path, "cpu: no file has the number of a machine's CPUs, so one process starts")
        return 1
    if not gpu_count and program.starts_workers:
        text = f"{wanted}: one process starts, as there are no GPUs in resources.limits"
        notes.changed(path, f"{text}; torchrun starts one for each CPU of the machine")
    return None


def _share(program: Program, nnodes: int, path: str) -> int | None:
    """Return how many of the program's own total of processes each node starts, or None."""
    if program.total is None:
        return None
    if not program.total or program.total % nnodes:
        rule = f"must be a multiple of the {nnodes} nodes, got {program.total}"
        raise InvalidJob(f"{path}: --num_processes", rule, program.total)
    return program.total // nnodes
