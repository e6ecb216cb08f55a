"""`python -m benchmarks.gpu`: what only GPUs can show, and docs/gpu.md from it.

Without a GPU it says what it would measure, writes nothing and exits with 0.
Exit codes: 0 all demands met or no GPU, 1 a demand missed or an error.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import mean

from benchmarks import gpu_loop, gpu_rounds
from benchmarks.gpu_loop import Demand
from benchmarks.report import table
from ddptrain.compare import main as compare
from ddptrain.compare.machine import Machine, count_cores, count_gpus, examine
from ddptrain.compare.table import LEGEND
from ddptrain.precision import NAMES
from tests.cluster.tiers import ROOT

PAGE = ROOT / "docs" / "gpu.md"
SEEDS = range(1, 9)  # one accuracy is a multiple of 1/360 and differs by 0.3 points between seeds
LEAST_ACCURACY = 0.97  # of each seed
MOST_LOST = 0.003  # by either, of the mean over the seeds
# gpt2 is weak: cut among many GPUs, a batch that fits on one would leave each with too little.
COMPARISONS = (
    ("--model", "basicnet"),
    ("--model", "basicnet", "--bf16"),
    ("--model", "basicnet", "--fp16"),
    ("--model", "gpt2", "--weak"),
    ("--model", "gpt2", "--weak", "--bf16"),
    ("--model", "gpt2", "--weak", "--fp16"),
)
RESULT = re.compile(r"^test accuracy (\d\.\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class Trained:
    """Test accuracies, 0 … 1, of the same training with each seed."""

    full: Sequence[float]  # float32
    halves: Mapping[str, Sequence[float]]  # by precision: bf16, fp16

    @property
    def demands(self) -> list[Demand]:
        """What was asked, what was measured, and whether that is enough."""
        worst = min(self.full)
        return [
            (
                f"float32: accuracy at least {LEAST_ACCURACY} with every seed",
                f"{worst:.4f} to {max(self.full):.4f}, mean {mean(self.full):.4f}",
                worst >= LEAST_ACCURACY,
            ),
            *(
                (
                    f"--{name}: at most {100 * MOST_LOST:.1f} points less, mean over the seeds",
                    f"{min(half):.4f} to {max(half):.4f}, mean {mean(half):.4f}: "
                    f"{100 * (mean(half) - mean(self.full)):+.2f} points",
                    mean(self.full) - mean(half) <= MOST_LOST,
                )
                for name, half in self.halves.items()
            ),
        ]


def training(gpus: int | str, seed: int | str, precision: str) -> list[str]:
    """Arguments of torchrun for one training on the bundled digits."""
    half = [] if precision == "no" else [f"--{precision}"]
    options = ["--data", "digits", "--seed", str(seed), *half]
    return ["--standalone", "--nproc-per-node", str(gpus), "-m", "ddptrain.native", *options]


def accuracy(gpus: int, seed: int, precision: str) -> float:
    """Train once over NCCL; the test accuracy. Raises CalledProcessError if that fails."""
    command = [sys.executable, "-m", "torch.distributed.run", *training(gpus, seed, precision)]
    # Nothing of a job around this one; NCCL by name, so that no training falls back to CPUs.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DDPJOB_")}
    environment = ours | {"DDPJOB_BACKEND": "nccl"}
    output = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found = RESULT.findall(output)
    assert found, output
    print(f"seed {seed}, {NAMES[precision]}: accuracy {found[-1]}", flush=True)
    return float(found[-1])


def train(gpus: int) -> Trained:
    """Every seed in every precision."""
    trained = {name: [accuracy(gpus, seed, name) for seed in SEEDS] for name in NAMES}
    return Trained(trained.pop("no"), trained)


def comparisons(cores: int, gpus: int) -> list[tuple[compare.Options, compare.Results]]:
    """The tables of `ddptrain.compare`."""
    asked = [compare.parse(arguments, cores=cores, gpus=gpus) for arguments in COMPARISONS]
    return [(options, compare.measure(options, rows)) for options, rows in asked]


def commands(gpus: int | str) -> list[str]:
    """What is run, as one would type it."""
    return [
        *("torchrun " + " ".join(training(gpus, "SEED", name)) for name in NAMES),
        *(f"python -m ddptrain.compare {' '.join(arguments)}" for arguments in COMPARISONS),
    ]


def plan() -> str:
    """What there would be to see on a machine with GPUs."""
    return _PLAN.format(
        commands="\n".join(f"  {command}" for command in commands("GPUS")),
        accuracy=LEAST_ACCURACY,
        points=100 * MOST_LOST,
        first=SEEDS[0],
        last=SEEDS[-1],
    )


def page(demands: Sequence[Demand], sections: Sequence[str], *, machine: Machine, date: str) -> str:
    """docs/gpu.md."""
    rows = [[asked, got, "yes" if met else "**no**"] for asked, got, met in demands]
    one = "There is one GPU here, so rows for several are missing from this page.\n\n"
    return _PAGE.format(
        date=date,
        hardware=machine.hardware,
        versions=machine.versions,
        missing=one if machine.gpus == 1 else "",
        commands="\n".join(commands(machine.gpus)),
        seeds=f"{SEEDS[0]} to {SEEDS[-1]}",
        demands=table(["demand", "measured", "met"], rows),
        sections="\n\n".join(sections),
        legend=LEGEND,
    )


_PLAN = """\
No GPU here: nothing is measured, and docs/gpu.md is not written.
On a machine with GPUs this runs, on all of them:
{commands}
It demands, over NCCL and with each SEED from {first} to {last}, an accuracy of at least {accuracy},
and of --bf16 and --fp16 at most {points:.1f} points less, mean over the seeds; that no step waits
for the GPU and no computing is taken for loading; that a group ends soon when one of its ranks
fails (two GPUs or more); and that a run from CPUs goes on on GPUs. A rank is killed in each of
several rounds in one pod: all ranks must be forked from a process that uses no GPU, make a group
again, and find the memory of those before them free.
The tables compare one process, DataParallel and DDP: speed, efficiency, GPU memory, all-reduce.
With one GPU, the rows for several are missing, and the page says so.
All of it goes to docs/gpu.md, with hardware, versions, date and commands.
"""

_PAGE = """\
<!-- Generated by `make gpu-check`. Do not edit. -->
# On GPUs

`make gpu-check` measured this on {date} and wrote this page.

- {hardware}
- {versions}

{missing}```
{commands}
```

## Training over NCCL

The bundled digits, 360 of them to test, seeds {seeds}, one process for each GPU.

{demands}

## One process, DataParallel, DDP

{sections}

{legend}
"""


def main() -> int:
    cores, gpus = count_cores(), count_gpus()
    if not gpus:
        print(plan(), end="")
        return 0
    demands = [*train(gpus).demands, *gpu_loop.demands(gpus), *gpu_rounds.demands(gpus)]
    compared = comparisons(cores, gpus)
    machine = examine(cores, gpus)  # last, as it takes memory on the first GPU
    sections = [compare.section(options, results, machine) for options, results in compared]
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    PAGE.write_text(page(demands, sections, machine=machine, date=date))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    missed = [asked for asked, _, met in demands if not met]
    for asked in missed:
        print(f"missed: {asked}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
