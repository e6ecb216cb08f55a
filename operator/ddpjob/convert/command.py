"""Reads command lines: of torchrun, torch.distributed.launch, `tune run`, accelerate and Python."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddpjob.convert.fields import Notes

Launcher = Literal["torchrun", "accelerate", "python", "none"]

_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?", re.ASCII)
_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.(run|launch)\b")


@dataclass(frozen=True)
class Program:
    """The launcher, command and arguments of a DDPJob, and what its command line has asked for.

    `nproc` are the processes on each node, as written, and `total` those on all nodes together.
    """

    launcher: Launcher
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    nproc: str = ""
    total: int | None = None
    max_restarts: int | None = None

    @property
    def is_one_process(self) -> bool:
        """Return whether the program is one process on each node, whatever the job wants."""
        is_python = bool(self.command) and is_python_name(self.command[0])
        return self.launcher == "python" or is_python and not self.starts_workers

    @property
    def starts_workers(self) -> bool:
        """Return whether the program starts several processes on a node, if the job wants them."""
        words = " ".join((*self.command, *self.args))
        return self.launcher in ("torchrun", "accelerate") or bool(_TORCHRUN.search(words))

    def command_for(self, world_size: int) -> list[str]:
        """Return the command. accelerate refuses `--multi_gpu` for a single process."""
        is_refused = self.launcher == "accelerate" and world_size == 1
        return [word for word in self.command if not (is_refused and word == SEVERAL)]


def is_python_name(word: str) -> bool:
    """Return whether the program's name is Python's, such as `/usr/bin/python3.11`."""
    return bool(_PYTHON.fullmatch(posixpath.basename(word)))


def number(text: str) -> int | None:
    """Return the number that `text` is, or None."""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else None


@dataclass(frozen=True)
class Option:
    """One option of a launcher: its long name with `_`, its value, and how it was written."""

    name: str
    value: str
    words: tuple[str, ...]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Options by their long names, of both launchers, because they agree where both have one.
# What ddpjob sets itself.
RENDEZVOUS = _names("""
    standalone nnodes node_rank master_addr master_port local_addr
    rdzv_backend rdzv_endpoint rdzv_id rdzv_conf
    num_machines num_processes machine_rank main_process_ip main_process_port
    same_network multi_gpu
""")
# What changes the launcher's output or its watch over the workers, but not the training.
OUTPUT = _names("""
    log_dir redirects tee log_line_prefix_template local_ranks_filter
    duplicate_stdout_filters duplicate_stderr_filters event_log_handler
    role monitor_interval start_method shutdown_timeout quiet debug
""")
# What becomes a field, or says how the script starts.
READ = _names("nproc_per_node max_restarts module use_env")
# Options that take no value.
FLAGS = _names("""
    standalone module no_python run_path virtual_local_rank use_env
    quiet cpu multi_gpu tpu same_network debug
    use_deepspeed use_fsdp use_megatron_lm use_parallelism_config
    dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
    enable_cpu_affinity tpu_cluster no_tpu_cluster tpu_use_sudo
    downcast_bf16 fp8_use_autocast_during_eval use_xpu use_mps_device ipex
""")
# What only the launcher's own command line can have.
OTHERS = _names("""
    logs_specs numa_binding signals_to_handle
    config_file mixed_precision gpu_ids num_cpu_threads_per_process dynamo_backend dynamo_mode
    main_training_function vm env zero_stage gradient_accumulation_steps gradient_clipping
    zero3_init_flag zero3_save_16bit_model offload_optimizer_device offload_param_device
    offload_optimizer_nvme_path offload_param_nvme_path mpirun_hostfile
    aws_access_key_id aws_secret_access_key
""")
KNOWN = RENDEZVOUS | OUTPUT | READ | FLAGS | OTHERS
PREFIXES = ("deepspeed_", "fsdp_", "megatron_lm_", "fp8_", "parallelism_config_")
SHORTS = {"-m": "module", "-r": "redirects", "-t": "tee", "-q": "quiet"}
# The options that say how the processes work together, in place of --multi_gpu.
STRATEGIES = _names("config_file cpu tpu use_deepspeed use_fsdp use_megatron_lm use_xpu")
SEVERAL = "--multi_gpu"

_TORCHRUNS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_ACCELERATES = ("accelerate", "accelerate.commands.accelerate_cli")
_ACCELERATE_LAUNCHES = ("accelerate-launch", "accelerate.commands.launch")
_LAUNCHERS = (*_TORCHRUNS, *_ACCELERATES, *_ACCELERATE_LAUNCHES)
_OTHER_PYTHON = "ddpjob starts python3 of the image's PATH, which may be another Python"
# Names of pods that only exist for the other operators, such as `mnist-master-0`.
_FOREIGN_PODS = re.compile(r"-(master|worker|node-0)-[0-9]", re.ASCII)
_FOREIGN_OPTIONS = re.compile(r"--(rdzv|master|node|machine|main_process)[-_][a-z]+", re.ASCII)


def read_command(command: Sequence[str], args: Sequence[str], where: str, notes: Notes) -> Program:
    """Return how a container with this command and these arguments starts.

    `where` is the path of the container.
    """
    if not command:
        reason = "the image's entry point runs, without ddpjob's agent"
        advice = "name the program in command, to have steps, first causes and restarts in place"
        notes.changed(f"{where}.command", f"absent: {reason}; {advice}")
        return Program("none", args=tuple(args))
    where, words = f"{where}.command", [*command, *args]
    program = _launcher(words, where, notes) or _python(words, where, notes)
    if program is None:
        _explain(words, where, notes)
        program = Program("none", command=tuple(command), args=tuple(args))
    if _FOREIGN_PODS.search(" ".join((*program.command, *program.args))):
        notes.lost(where, "names a pod of the other operator; use MASTER_ADDR, the pod of rank 0")
    return program


def _launcher(words: Sequence[str], where: str, notes: Notes) -> Program | None:
    """Return the program of a command that begins with torchrun or accelerate, or None."""
    name, length = _called(words)
    if "/" in words[0] and name in _LAUNCHERS:
        notes.changed(where, _OTHER_PYTHON)
    is_tune = name == "tune" and words[1:2] == ["run"]
    if is_tune or name in _ACCELERATES and words[length : length + 1] == ["launch"]:
        length += 1
    elif name not in (*_TORCHRUNS, *_ACCELERATE_LAUNCHES):
        return None
    launcher: Launcher = "torchrun" if is_tune or name in _TORCHRUNS else "accelerate"
    return _read_launcher(launcher, words[:length], words[length:], where, notes)


def _called(words: Sequence[str]) -> tuple[str, int]:
    """Return the program's name, or that of Python's module, and how many words name it."""
    place = 1
    if is_python_name(words[0]):
        place += words[1:2] == ["-u"]
        if words[place : place + 1] == ["-m"] and len(words) > place + 1:
            return words[place + 1], place + 2
    return posixpath.basename(words[0]), 1


def _python(words: Sequence[str], where: str, notes: Notes) -> Program | None:
    """Return the program of `python SCRIPT …` and `python -m MODULE …`, or None."""
    if not is_python_name(words[0]):
        return None
    rest = words[2:] if words[1:2] == ["-u"] else words[1:]
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    if not rest or not rest[0] or rest[0].startswith("-") and not is_module:
        return None  # python -c CODE, and options of Python's own
    if words[0] not in ("python", "python3"):
        notes.changed(where, _OTHER_PYTHON)
    return Program("python", args=tuple(rest))


def _explain(words: Sequence[str], where: str, notes: Notes) -> None:
    """Note that the command is carried over as it is, and what in it may not fit."""
    reason = "ddpjob finds no launcher and script in it; with launcher and args it restarts sooner"
    notes.changed(where, f"carried over as it is: {reason}")
    if found := sorted({option[0] for option in _FOREIGN_OPTIONS.finditer(" ".join(words))}):
        rule = "RANK is the node's rank, WORLD_SIZE the number of nodes; MASTER_ADDR, MASTER_PORT"
        notes.changed(where, f"{', '.join(found)}: must agree with ddpjob's variables ({rule})")


def name_of(word: str) -> str | None:
    """Return the long name of the option that `word` stands for; None if it is unknown."""
    if not word.startswith("--"):
        return SHORTS.get(word)
    name = word[2:].replace("-", "_")
    return name if name in KNOWN or name.startswith(PREFIXES) else None


def split(words: Sequence[str]) -> tuple[list[Option], list[str]] | None:
    """Return a launcher's options, and the script with its arguments.

    The result is None if there is an unknown option, because it may take the next word or not, and
    if there is no script.
    """
    options: list[Option] = []
    place = 0
    while place < len(words) and words[place].startswith("-"):
        word, equals, value = words[place].partition("=")
        if word[:2] in SHORTS and len(word) > 2:  # -r3
            word, equals, value = word[:2], "=", words[place][2:]
        name = name_of(word)
        if name is None or equals and name in FLAGS:
            return None
        takes = int(not equals and name not in FLAGS)
        used = tuple(words[place : place + 1 + takes])
        options.append(Option(name, used[-1] if takes else value, used))
        place += 1 + takes
    return (options, list(words[place:])) if place < len(words) else None


def _read_launcher(
    launcher: Launcher, name: Sequence[str], words: Sequence[str], where: str, notes: Notes
) -> Program | None:
    """Return how the launcher, called by `name`, starts with `words`, if it has such options."""
    found = split(words)
    if found is None:
        return None
    options, script = found
    values = {option.name: option.value for option in options}
    kept = [option for option in options if not _is_ours(option)]
    _explain_options(options, kept, where, notes)
    start: list[str] = []
    if name[0] == "tune":  # without an option of torchrun's it starts one process
        reason = "carried over as command, because ddpjob has no such launcher"
        notes.changed(where, f"tune run: {reason}")
        start = [*name, "--nnodes=$(PET_NNODES)"]
    elif name[-1] == "torch.distributed.launch" and "use_env" not in values:
        reason = "carried over as command, because it gives the script --local-rank"
        notes.changed(where, f"{name[-1]}: {reason}; with --use-env it would be torchrun")
        start = [*name]
    elif kept:
        start = ["torchrun"] if launcher == "torchrun" else _accelerate({*values})
    return Program(
        launcher=launcher,
        command=(*start, *(word for option in kept for word in option.words)),
        args=(*(["-m"] if "module" in values else []), *script),
        nproc=values.get("nproc_per_node", ""),
        total=number(values.get("num_processes", "")),
        max_restarts=number(values.get("max_restarts", "")),
    )


def _is_ours(option: Option) -> bool:
    """Return whether ddpjob does the same, or the option changes only the output."""
    if option.name in ("mixed_precision", "dynamo_backend"):
        return option.value.lower() == "no"
    return option.name in RENDEZVOUS | OUTPUT | READ


def _explain_options(options: list[Option], kept: list[Option], where: str, notes: Notes) -> None:
    """Note what becomes of the options, without their values."""
    spelled = {option: option.words[0].partition("=")[0] for option in options}
    if ours := [spelled[option] for option in options if option.name in RENDEZVOUS]:
        notes.changed(where, f"{', '.join(ours)}: left out, because ddpjob sets the rendezvous")
    if output := [spelled[option] for option in options if option.name in OUTPUT]:
        reason = "ddpjob's agent watches the ranks, and the pod's log has the output of all"
        notes.lost(where, f"{', '.join(output)}: {reason}")
    if any(option.name == "nnodes" and ":" in option.value for option in options):
        notes.lost(
            where, "--nnodes MIN:MAX: nnodes is the largest size, elastic.minNodes the least"
        )
    if kept:
        reason = "carried over as command, because the launcher's args begin with a script"
        names = ", ".join(spelled[option] for option in kept)
        notes.changed(where, f"{names}: {reason}; so no process starts warm")


def _accelerate(names: set[str]) -> list[str]:
    """Return `accelerate launch` with the rendezvous of ddpjob, in place of the options `names`.

    The agent gives each round a port of its own, by this form of the command.
    """
    is_plain = "multi_gpu" in names or not names & STRATEGIES
    return [
        *("python3", "-u", "-m", "accelerate.commands.launch"),
        *([SEVERAL] if is_plain else []),
        *("--num_machines", "$(PET_NNODES)", "--num_processes", "$(DDPJOB_WORLD_SIZE)"),
        *("--machine_rank", "$(PET_NODE_RANK)", "--main_process_ip", "$(PET_MASTER_ADDR)"),
        *("--main_process_port", "$(PET_MASTER_PORT)", "--rdzv_backend", "static"),
    ]
