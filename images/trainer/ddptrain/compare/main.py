"""One process, DataParallel and DDP on this machine, in one table.

    python -m ddptrain.compare                       # BasicNet, one process and 1, 2, 4 … with DDP
    python -m ddptrain.compare --model gpt2 --bf16   # for GPUs: on CPUs a step takes minutes
    python -m ddptrain.compare --processes 1x1 1x2 2x1 --weak

It starts the processes itself. Every measurement has fresh ones and a process group of its own, and
the variants take turns, so that a machine which grows slower does so for all of them.
DDPJOB_BACKEND=gloo leaves the GPUs alone.
Exit codes: 0 measured, 1 error, 2 wrong option.
"""

import argparse
import json
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.multiprocessing.spawn import ProcessException, start_processes

from ddptrain import precision
from ddptrain.compare import rank as rank_process
from ddptrain.compare.machine import Machine, count_cores, count_gpus, examine
from ddptrain.compare.rank import ERROR, OUT_OF_MEMORY, Work
from ddptrain.compare.table import (
    LEGEND,
    Measurement,
    Scale,
    Variant,
    doubts,
    omissions,
    table,
    variants,
)
from ddptrain.config import positive

BATCH_SIZES = {"basicnet": 64, "resnet": 64, "gpt2": 8}  # 64 as in the tutorials
NAMES = {
    "basicnet": "BasicNet, 1 × 28 × 28",
    "resnet": "ResidualNet, 3 × 32 × 32",
    "gpt2": "GPT-2 (124,439,808 parameters)",
}
Results = dict[Variant, list[Measurement | None]]


@dataclass(frozen=True)
class Options:
    """The command line; `parse` says what each option means."""

    model: str
    batch_size: int
    length: int
    steps: int
    warmup: int
    repeats: int
    processes: list[tuple[int, int | None]] | None
    cores: int
    weak: bool
    precision: str
    json: Path | None
    markdown: Path | None

    @property
    def scale(self) -> Scale:
        """What a step works on."""
        unit, per_sample = ("tokens", self.length) if self.model == "gpt2" else ("samples", 1)
        return Scale(self.batch_size, self.weak, unit, per_sample)

    def work(self, variant: Variant) -> Work:
        """What each process of `variant` is to measure."""
        return Work(
            model=self.model,
            variant=variant,
            batch_size=variant.batch(self.batch_size, weak=self.weak),
            length=self.length,
            steps=self.steps,
            warmup=self.warmup,
            precision=self.precision,
        )

    def describe(self) -> str:
        """The line above the table."""
        length = f", sequences of {self.length} tokens" if self.model == "gpt2" else ""
        batch = "of each process or GPU (weak" if self.weak else "of all together (strong"
        return (
            f"{NAMES[self.model]}{length}, {precision.NAMES[self.precision]}, "
            f"synthetic data. Batch size {self.batch_size} {batch} scaling). Runs of each variant: "
            f"{self.repeats}, of {self.steps} steps after {self.warmup}; median (min–max)."
        )


class VariantFailed(RuntimeError):
    """A process of a variant failed, and not for want of memory; the message has its traceback."""


def run_once(work: Work) -> Measurement | None:
    """One measurement in processes of its own; None if one of them ran out of memory.

    Raises VariantFailed if one of them failed otherwise.
    """
    count = work.variant.processes
    with TemporaryDirectory(prefix="ddptrain-compare-") as folder:
        context = start_processes(  # type: ignore[no-untyped-call]
            rank_process.main,
            args=(work, free_port(), folder),
            nprocs=count,
            join=False,
            daemon=True,
            # A fork would start sooner, but does not count torch's libraries as its own memory.
            start_method="spawn",
        )
        try:
            while not context.join():
                pass
        except ProcessException as error:
            if Path(folder, OUT_OF_MEMORY).exists():
                return None
            first = Path(folder, ERROR)
            cause = first.read_text() if first.exists() else "killed, as when memory runs out"
            raise VariantFailed(f"{work.variant}: {error}\n\n{cause}") from None
        texts = [Path(folder, f"{rank}.json").read_text() for rank in range(count)]
    return of_all_ranks([Measurement(**json.loads(text)) for text in texts])


def of_all_ranks(ranks: Sequence[Measurement]) -> Measurement:
    """What each figure is on the rank where it is worst."""
    buses = [rank.bus_bytes_per_second for rank in ranks if rank.bus_bytes_per_second]
    shares = [rank.hidden for rank in ranks if rank.hidden is not None]
    return Measurement(
        step_seconds=max(rank.step_seconds for rank in ranks),
        peak_bytes=max(rank.peak_bytes for rank in ranks),
        gradient_bytes=ranks[0].gradient_bytes,
        bus_bytes_per_second=min(buses, default=None),
        hidden=min(shares, default=None),
    )


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def measure(
    options: Options,
    rows: Sequence[Variant],
    run: Callable[[Work], Measurement | None] = run_once,
) -> Results:
    """`options.repeats` rounds in each of which every variant runs once, and a word on each run.

    What has run out of memory once does not run again.
    """
    results: Results = {variant: [] for variant in rows}
    for number in range(1, options.repeats + 1):
        for variant, runs in results.items():
            if None in runs:
                continue
            done = run(options.work(variant))
            runs.append(done)
            said = f"{1000 * done.step_seconds:.1f} ms a step" if done else "out of memory"
            print(f"{variant}, run {number}/{options.repeats}: {said}", file=sys.stderr, flush=True)
    return results


def section(options: Options, results: Results, machine: Machine) -> str:
    """What was measured, the table, and what it does not show, in Markdown."""
    remarks = omissions(list(results), cores=options.cores, gpus=machine.gpus) + doubts(results)
    parts = [
        options.describe(),
        table(options.scale, results),
        "\n".join(f"- {line}" for line in remarks),
    ]
    return "\n\n".join(filter(None, parts))


def report(options: Options, results: Results, machine: Machine, command: str) -> str:
    """The page that is printed, in Markdown."""
    head = f"- {machine.hardware}\n- {machine.versions}\n- `{command}`"
    return "\n\n".join([head, section(options, results, machine), LEGEND]) + "\n"


def as_json(options: Options, results: Results, machine: Machine, command: str) -> str:
    """Every single measurement, for other programs."""
    runs = [
        {"variant": asdict(variant), "runs": [run and asdict(run) for run in done]}
        for variant, done in results.items()
    ]
    kept = {"machine": asdict(machine), "command": command, "options": asdict(options)}
    return json.dumps(kept | {"results": runs}, indent=2, default=str) + "\n"


def parse(arguments: Sequence[str], *, cores: int, gpus: int) -> tuple[Options, list[Variant]]:
    """The options and the variants that they ask for; exits with 2 if that cannot be."""
    parser = argparse.ArgumentParser(
        "python -m ddptrain.compare", description="One process, DataParallel and DDP, in one table."
    )
    add = parser.add_argument
    add("--model", choices=NAMES, default="basicnet")
    add("--batch-size", type=positive, help="samples per step (basicnet, resnet: 64, gpt2: 8)")
    add("--length", type=positive, default=1024, help="gpt2: tokens of a sample, at most 1024")
    add("--steps", type=positive, help="timed in each run (20; basicnet, resnet on GPUs: 200)")
    add("--warmup", type=positive, default=10, help="before those; DDP times itself in ten steps")
    add("--repeats", type=positive, default=5, help="runs of each variant, in turn")
    add(
        "--processes",
        type=_shape,
        nargs="+",
        metavar="N[xTHREADS]",
        help="processes with DDP (default: 1, 2, 4 … GPUs, or as many as there are cores)",
    )
    add("--cores", type=positive, default=cores, help=f"CPU cores to count on ({cores})")
    add("--weak", action="store_true", help="the batch size is that of each process or GPU")
    precision.add_options(parser)
    add("--json", type=Path, metavar="FILE", help="write every single measurement here too")
    add("--markdown", type=Path, metavar="FILE", help="write the table here, not to stdout")
    given = vars(parser.parse_args(arguments))
    given["batch_size"] = given["batch_size"] or BATCH_SIZES[given["model"]]
    given["steps"] = given["steps"] or (200 if gpus and given["model"] != "gpt2" else 20)
    options = Options(**given)
    if options.length > 1024:
        parser.error(f"--length must be at most 1024, got {options.length}")
    for path in filter(None, (options.json, options.markdown)):
        if not path.parent.is_dir():
            parser.error(f"{path}: there is no folder {path.parent}")
        if path.is_dir():
            parser.error(f"{path}: is a folder, must be a file")
    try:
        rows = variants(options.cores, gpus, options.processes)
    except ValueError as error:
        parser.error(str(error))
    for row in rows:
        if row.batch(options.batch_size, weak=options.weak) < row.parts:
            parser.error(f"--batch-size: at least {row.parts} for {row}, got {options.batch_size}")
    return options, rows


def _shape(text: str) -> tuple[int, int | None]:
    """`2` or `2x1`: processes, and threads of each."""
    processes, separator, threads = text.partition("x")
    try:
        return positive(processes), positive(threads) if separator else None
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be N or NxTHREADS, got {text!r}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    gpus = count_gpus()
    options, rows = parse(arguments, cores=count_cores(), gpus=gpus)
    command = shlex.join(["python", "-m", "ddptrain.compare", *arguments])
    results = measure(options, rows)
    machine = examine(count_cores(), gpus)
    page = report(options, results, machine, command)
    if options.markdown:
        options.markdown.write_text(page)
    else:
        print(page, end="")
    if options.json:
        options.json.write_text(as_json(options, results, machine, command))
    return 0
