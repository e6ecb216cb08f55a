"""Reads the command lines of `accelerate launch`."""

from collections.abc import Sequence

from ddpjob.convert.fields import Notes
from ddpjob.convert.options import Option, Table, split
from ddpjob.convert.program import Program, number, spelled

# What ddpjob's launcher sets itself.
RENDEZVOUS = frozenset(
    {
        *("num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port"),
        *("rdzv_backend", "rdzv_conf", "same_network", "multi_gpu"),
    }
)
OUTPUT = frozenset({"tee", "log_dir", "role", "monitor_interval", "quiet", "debug"})
FLAGS = frozenset(
    {
        *("quiet", "cpu", "multi_gpu", "tpu", "same_network", "module", "no_python", "debug"),
        *("use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config"),
        *("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"),
        *("enable_cpu_affinity", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo"),
        *("downcast_bf16", "fp8_use_autocast_during_eval", "use_xpu", "use_mps_device", "ipex"),
    }
)
VALUES = frozenset(
    {
        *("config_file", "mixed_precision", "num_processes", "num_machines", "gpu_ids"),
        *("num_cpu_threads_per_process", "dynamo_backend", "dynamo_mode", "machine_rank"),
        *("main_process_ip", "main_process_port", "tee", "log_dir", "role", "rdzv_backend"),
        *("rdzv_conf", "max_restarts", "monitor_interval", "main_training_function", "vm", "env"),
        *("zero_stage", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag"),
        *("zero3_save_16bit_model", "offload_optimizer_device", "offload_param_device"),
        *("offload_optimizer_nvme_path", "offload_param_nvme_path", "mpirun_hostfile"),
        *("aws_access_key_id", "aws_secret_access_key"),
    }
)
# All options that begin so take a value, but for those of FLAGS.
PREFIXES = ("deepspeed_", "fsdp_", "megatron_lm_", "fp8_", "parallelism_config_")
# The options that say how the processes work together, in place of --multi_gpu.
STRATEGIES = frozenset(
    {"config_file", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu"}
)
SEVERAL = "--multi_gpu"


class _Table(Table):
    """The options of `accelerate launch`, of which there are more than a hundred."""

    def name(self, word: str) -> str | None:
        """Return the long name of the option that `word` stands for; None if it is unknown."""
        wanted = word[2:].replace("-", "_")
        if word.startswith("--") and wanted.startswith(PREFIXES) and wanted not in self.flags:
            return wanted
        return super().name(word)

    def takes_value(self, name: str) -> bool:
        """Return whether the option takes a value."""
        return name not in self.flags


TABLE = _Table(VALUES, FLAGS, {"-m": "module", "-t": "tee", "-q": "quiet"})


def read_accelerate(words: Sequence[str], where: str, notes: Notes) -> Program | None:
    """Return how `accelerate launch` with the arguments `words` starts.

    The result is None if it has no such options.
    """
    found = split(words, TABLE)
    if found is None:
        return None
    options, script = found
    values = {option.name: option.value for option in options}
    if ours := spelled(options, RENDEZVOUS):
        notes.changed(where, f"{ours}: left out, because ddpjob sets the rendezvous")
    if output := spelled(options, OUTPUT):
        notes.lost(where, f"{output}: the pod's log has the output of all ranks")
    kept = [option for option in options if not _is_ours(option)]
    if kept:
        names = spelled(kept, frozenset(option.name for option in kept))
        reason = "carried over as command, because the launcher's args begin with a script"
        notes.changed(where, f"{names}: {reason}")
    return Program(
        launcher="accelerate",
        command=_command(options, kept) if kept else (),
        args=(*(["-m"] if "module" in values else []), *script),
        total=number(values.get("num_processes", "")),
        max_restarts=number(values.get("max_restarts", "")),
    )


def _is_ours(option: Option) -> bool:
    """Return whether ddpjob's launcher does the same, or the option changes only the output."""
    if option.name in ("mixed_precision", "dynamo_backend"):
        return option.value.lower() == "no"
    return option.name in RENDEZVOUS | OUTPUT | {"module", "max_restarts"}


def _command(options: Sequence[Option], kept: Sequence[Option]) -> tuple[str, ...]:
    """Return `accelerate launch` with the options `kept` and the rendezvous of ddpjob.

    The agent gives each round a port of its own, by this form of the command.
    """
    names = {option.name for option in options}
    is_plain = "multi_gpu" in names or not names & STRATEGIES
    return (
        *("python3", "-u", "-m", "accelerate.commands.launch"),
        *([SEVERAL] if is_plain else []),
        *("--num_machines", "$(PET_NNODES)", "--num_processes", "$(DDPJOB_WORLD_SIZE)"),
        *("--machine_rank", "$(PET_NODE_RANK)", "--main_process_ip", "$(PET_MASTER_ADDR)"),
        *("--main_process_port", "$(PET_MASTER_PORT)", "--rdzv_backend", "static"),
        *(word for option in kept for word in option.words),
    )


def command_of(program: Program, world_size: int) -> list[str]:
    """Return the program's command. accelerate refuses `--multi_gpu` for a single process."""
    is_refused = program.launcher == "accelerate" and world_size == 1
    return [word for word in program.command if not (is_refused and word == SEVERAL)]
