"""Reads the command lines of torchrun, torch.distributed.launch and torchtune's `tune run`."""

from collections.abc import Sequence

from ddpjob.convert.fields import Notes
from ddpjob.convert.options import Option, Table, split
from ddpjob.convert.program import Program, number, spelled

# What ddpjob sets itself. `standalone` has a note of its own.
RENDEZVOUS = frozenset(
    {
        *("nnodes", "node_rank", "master_addr", "master_port", "local_addr"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
    }
)
# What changes torchrun's output or its watch over the workers, but not the training.
OUTPUT = frozenset(
    {
        *("log_dir", "redirects", "tee", "log_line_prefix_template", "local_ranks_filter"),
        *("duplicate_stdout_filters", "duplicate_stderr_filters", "event_log_handler"),
        *("role", "monitor_interval", "start_method", "shutdown_timeout"),
    }
)
# What only torchrun's own command line can have.
KEPT = frozenset(
    {
        *("no_python", "run_path", "virtual_local_rank"),
        *("logs_specs", "numa_binding", "signals_to_handle"),
    }
)
FLAGS = frozenset({"standalone", "module", "no_python", "run_path", "virtual_local_rank"})
# torch.distributed.launch has it too, and without it the script gets --local-rank.
USE_ENV = "use_env"
TABLE = Table(
    values=(RENDEZVOUS | OUTPUT | KEPT | {"nproc_per_node", "max_restarts"}) - FLAGS,
    flags=FLAGS | {USE_ENV},
    shorts={"-m": "module", "-r": "redirects", "-t": "tee"},
    has_abbreviations=True,
)


def read_torchrun(
    name: Sequence[str], words: Sequence[str], where: str, notes: Notes
) -> Program | None:
    """Return how torchrun with the arguments `words` starts; None if it has no such options.

    `name` is what it is called by, such as `python -m torch.distributed.launch`.
    """
    found = split(words, TABLE)
    if found is None:
        return None
    options, script = found
    values = {option.name: option.value for option in options}
    _note(options, where, notes)
    return Program(
        launcher="torchrun",
        command=_command(name, options, where, notes),
        args=(*(["-m"] if "module" in values else []), *script),
        nproc=values.get("nproc_per_node", ""),
        max_restarts=number(values.get("max_restarts", "")),
    )


def _command(
    name: Sequence[str], options: Sequence[Option], where: str, notes: Notes
) -> tuple[str, ...]:
    """Return what the launcher of a DDPJob cannot do by itself; empty if it can do all."""
    kept = [word for option in options if option.name in KEPT for word in option.words]
    if name[0] == "tune":  # without an option of torchrun's it starts one process
        notes.changed(
            where, "tune run: carried over as command, because ddpjob has no such launcher"
        )
        return (*name, "--nnodes=$(PET_NNODES)", *kept)
    if name[-1] == "torch.distributed.launch":
        if not any(option.name == USE_ENV for option in options):
            reason = "carried over as command, because it gives the script --local-rank"
            notes.changed(where, f"{name[-1]}: {reason}; with --use-env it would be torchrun")
            return (*name, *kept)
        name = ["torchrun"]
    if kept:
        reason = "carried over as command, because the launcher's args begin with a script"
        notes.changed(where, f"{spelled(options, KEPT)}: {reason}; so no process starts warm")
    return (*name, *kept) if kept else ()


def _note(options: Sequence[Option], where: str, notes: Notes) -> None:
    if ours := spelled(options, RENDEZVOUS):
        notes.changed(where, f"{ours}: left out, because ddpjob sets the rendezvous")
    if output := spelled(options, OUTPUT):
        reason = "ddpjob's agent watches the ranks, and the pod's log has the output of all"
        notes.lost(where, f"{output}: {reason}")
    for option in options:
        if option.name == "nnodes" and ":" in option.value:
            notes.lost(where, "--nnodes MIN:MAX: a DDPJob is not elastic")
        if option.name == "standalone":
            notes.changed(where, "--standalone: all nodes train together, not each by itself")
