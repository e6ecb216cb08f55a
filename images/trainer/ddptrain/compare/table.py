"""Which variants a comparison runs, and what its measurements say. Pure: nothing runs in here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SINGLE, PARALLEL, DDP = "single", "DataParallel", "DDP"
MIB = 2**20
UNSTEADY = 1.3  # slowest run over fastest; on a quiet machine it is below 1.1
LEGEND = """\
- **step**: forward, backward, all-reduce, AdamW; no data loading. Of the slowest process.
- **speed-up**: samples (tokens) per second over those of the first row, round by round, since
  neighbours in time share what else the machine does. **efficiency**: the same, divided by the
  threads (on GPUs: the GPUs) in use.
- **all-reduce alone**: the gradients' bytes × 2(W-1)/W over the bus bandwidth of a bare all-reduce
  of as many bytes among the same W processes, the best of all runs. No step can be shorter.
- **hidden**: of the time from a step's first all-reduce to the end of its last, the part in which
  the backward pass went on, by DDP's own log."""


@dataclass(frozen=True)
class Variant:
    """One way of running the same training."""

    kind: str  # SINGLE, PARALLEL or DDP
    processes: int
    threads: int  # of each process, on the CPU
    gpus: int = 0  # of each process; 0: it computes on the CPU

    @property
    def units(self) -> int:
        """GPUs that compute, or threads where there are none: what efficiency is counted in."""
        return self.processes * (self.gpus or self.threads)

    @property
    def parts(self) -> int:
        """Parts that each batch is cut into."""
        return self.processes * max(1, self.gpus)

    @property
    def shape(self) -> str:
        """Processes × threads, or × GPUs."""
        return f"{self.processes} × {self.gpus or self.threads}"

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}"

    def batch(self, size: int, *, weak: bool) -> int:
        """Samples in a step: `size` of all parts together, or of each part if `weak`."""
        return size * self.parts if weak else size


@dataclass(frozen=True)
class Measurement:
    """One run of one variant, in processes of its own."""

    step_seconds: float  # mean over the steps, of the slowest process
    peak_bytes: int  # memory of the process (on GPUs: the GPU) that needed most
    gradient_bytes: int
    bus_bytes_per_second: float | None  # of a bare all-reduce; None for one process
    hidden: float | None  # 0 … 1, of the all-reduce; None if DDP does not say


Runs = Sequence[Measurement | None]  # one a round; None: out of memory


@dataclass(frozen=True)
class Scale:
    """What a step of each variant works on."""

    batch_size: int
    weak: bool  # the batch size is that of each part, not of all together
    unit: str  # what is counted: samples or tokens
    per_sample: int  # units in a sample

    def per_step(self, variant: Variant) -> int:
        """Samples or tokens in a step of all processes together."""
        return variant.batch(self.batch_size, weak=self.weak) * self.per_sample


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 … up to `limit`."""
    return [1 << exponent for exponent in range(limit.bit_length())]


def variants(
    cores: int, gpus: int, asked: Sequence[tuple[int, int | None]] | None = None
) -> list[Variant]:
    """What to run on `cores` cores and `gpus` GPUs; the first has one thread or GPU.

    `asked` are the DDP rows: processes and threads of each (None: its share of the cores). Raises
    ValueError if there are fewer GPUs than processes.
    """
    if gpus:
        return _gpu_variants(cores, gpus, asked)
    if asked is None:
        asked = [(1, 1), *((count, None) for count in powers_of_two(cores))]
    rows = [
        Variant(SINGLE, 1, 1),
        Variant(SINGLE, 1, cores),
        *(Variant(DDP, count, threads or _share(cores, count)) for count, threads in asked),
    ]
    return list(dict.fromkeys(rows))


def _gpu_variants(
    cores: int, gpus: int, asked: Sequence[tuple[int, int | None]] | None
) -> list[Variant]:
    asked = asked or [(count, None) for count in powers_of_two(gpus)]
    if too_many := [count for count, _ in asked if count > gpus]:
        raise ValueError(f"--processes: at most {gpus}, one for each GPU, got {too_many[0]}")
    parallel = [count for count, _ in asked if count > 1]
    rows = [
        Variant(SINGLE, 1, cores, gpus=1),
        *(Variant(PARALLEL, 1, cores, gpus=count) for count in parallel),
        *(Variant(DDP, count, threads or _share(cores, count), 1) for count, threads in asked),
    ]
    return list(dict.fromkeys(rows))


def _share(cores: int, processes: int) -> int:
    return max(1, cores // processes)


def omissions(rows: Sequence[Variant], *, cores: int, gpus: int) -> list[str]:
    """A line for everything that a comparison shows elsewhere and cannot show here."""
    lines = []
    if gpus == 0:
        lines += [
            "DataParallel: not shown. It spreads a batch over GPUs, and there are none here; on "
            "CPUs it calls the model as it is.",
            "NCCL, GPU memory: not shown, as there are no GPUs here. DDP ran over gloo, and memory "
            "is the resident set of a process, torch's libraries included.",
        ]
    if gpus == 1:
        lines.append("DataParallel, DDP on several GPUs: not shown, as there is one GPU here.")
    if gpus == 0 and cores == 1:
        lines.append("A gain from several processes: not shown, as there is one core here.")
    if crowded := [row for row in rows if row.processes * row.threads > cores]:
        names = ", ".join(map(str, crowded))
        lines.append(f"More threads than cores ({cores}), so slower than need be: {names}.")
    return lines


def doubts(results: Mapping[Variant, Runs]) -> list[str]:
    """A line if runs of the same variant differ so much that the table says little."""
    spreads = {
        variant: max(steps) / min(steps)
        for variant, runs in results.items()
        if (steps := [run.step_seconds for run in runs if run])
    }
    shaky = {variant: spread for variant, spread in spreads.items() if spread > UNSTEADY}
    if not shaky:
        return []
    worst = max(shaky, key=shaky.__getitem__)
    return [
        f"Not a quiet machine: the runs of {worst} differ by a factor of {shaky[worst]:.1f}, and "
        f"{len(shaky)} of {len(results)} rows by more than {UNSTEADY}. Measure again when nothing "
        "else runs."
    ]


def bus_bandwidth(size: int, seconds: float, processes: int) -> float:
    """Bytes per second on the busiest link while `processes` all-reduce `size` bytes each.

    Source: nccl-tests, doc/PERFORMANCE.md: size / time × 2(n-1)/n, which does not depend on n where
    the links are what limits.
    """
    return size / seconds * 2 * (processes - 1) / processes


def all_reduce_seconds(size: int, bandwidth: float, processes: int) -> float:
    """Least seconds in which `processes` all-reduce `size` bytes at a bus `bandwidth`."""
    return size * 2 * (processes - 1) / processes / bandwidth


def efficiency(speed_up: float, variant: Variant) -> float:
    """Speed-up over one thread (or GPU), divided by the threads (or GPUs) of `variant`; 1 is all.

    With throughput as the speed this is T(1) / (n T(n)) at a fixed global batch (strong scaling)
    and T(1) / T(n) at a fixed batch per process (weak scaling).
    """
    return speed_up / variant.units


def speed_ups(scale: Scale, results: Mapping[Variant, Runs], variant: Variant) -> list[float]:
    """Throughput of `variant` over that of the first one, for each round in which both ran."""
    baseline, base_runs = next(iter(results.items()))
    work = scale.per_step(variant) / scale.per_step(baseline)
    return [
        work * base.step_seconds / run.step_seconds
        for base, run in zip(base_runs, results[variant], strict=False)
        if base and run
    ]


def table(scale: Scale, results: Mapping[Variant, Runs]) -> str:
    """The comparison as a Markdown table, a row for each variant."""
    on_gpus = any(variant.gpus for variant in results)
    head = [
        "variant",
        "processes × GPUs" if on_gpus else "processes × threads",
        f"{scale.unit}/s",
        "step, ms",
        "speed-up",
        "efficiency",
        f"peak memory of a {'GPU' if on_gpus else 'process'}, MiB",
        "all-reduce alone, ms (bus, GB/s)",
        "hidden",
    ]
    rows = [row(scale, results, variant) for variant in results]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(scale: Scale, results: Mapping[Variant, Runs], variant: Variant) -> list[str]:
    """The cells of one variant; nothing but its name if it ran out of memory in any round."""
    runs = [run for run in results[variant] if run]
    if len(runs) < len(results[variant]):
        return [variant.kind, variant.shape, "out of memory", *["–"] * 6]
    steps = [1000 * run.step_seconds for run in runs]
    ratios = speed_ups(scale, results, variant)
    return [
        variant.kind,
        variant.shape,
        _digits(1000 * scale.per_step(variant) / median(steps)),
        f"{_digits(median(steps))} ({_digits(min(steps))}–{_digits(max(steps))})",
        f"{median(ratios):.2f}" if ratios else "–",
        f"{100 * efficiency(median(ratios), variant):.0f} %" if ratios else "–",
        f"{max(run.peak_bytes for run in runs) / MIB:,.0f}",
        _bound(runs, variant.processes),
        _hidden(runs),
    ]


def _digits(number: float) -> str:
    """Three digits that count, or all of those before the point."""
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f}"


def _bound(runs: Sequence[Measurement], processes: int) -> str:
    probes = [run.bus_bytes_per_second for run in runs if run.bus_bytes_per_second]
    if not probes:
        return "–"
    best = max(probes)
    seconds = all_reduce_seconds(runs[0].gradient_bytes, best, processes)
    return f"{_digits(1000 * seconds)} ({best / 1e9:.2f})"


def _hidden(runs: Sequence[Measurement]) -> str:
    shares = [run.hidden for run in runs if run.hidden is not None]
    return f"{100 * median(shares):.0f} %" if shares else "–"
