"""How far the script is, and how fast.

By its progress file, else by transformers' callback, else by the optimizer steps of the hooks.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from dataclasses import dataclass
from typing import Any, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say
from ddpjob_agent.records import (
    integer,
    names_in,
    number,
    objects,
    past,
    read_bytes,
    read_json,
    read_records,
)

PROGRESS_BYTES = 16 * 1024
POLL_SECONDS = 0.5


class Progress:
    """The newest report, of the best source that there is; and how fast the steps go."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.source = "none"
        self.report: dict[str, Any] = {}
        self.updated_at = self.stepped_at = 0.0  # unix seconds: of the report, of its step
        self.eta: float | None = None  # seconds
        self.file: tuple[int, ...] = ()  # as it was read last: mtime, size, inode
        self.first = (0.0, 0)  # monotonic seconds and step of the first report
        self.counted: int | None = None  # steps, by the hooks
        self.reports = Reports()  # of transformers' callback
        self.signs: set[tuple[int, int, int]] = set()  # of life, by the hooks
        self.steps: dict[int, tuple[int, int | None, float]] = {}  # by pid; as in stepped
        self.moved: float | None = None  # monotonic seconds of the last new step, of either source
        self.warned: set[str] = set()

    def poll(self, now: float) -> None:
        """Look for news; `now` is monotonic."""
        try:
            self.poll_file(now)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as problem:
            self.warn(str(problem))
        pages = read_pages(self.config.run_dir)
        for page in pages:
            if page.step != self.steps.get(page.pid, (0,))[0]:
                self.steps[page.pid] = page.step, page.rank, time.time() - POLL_SECONDS
        shown = self.source != "file" and self.config.count_steps
        signs = {(page.pid, page.step, page.others) for page in pages}
        if signs != self.signs and (shown or self.config.hang_seconds):
            self.signs, self.moved, self.stepped_at = signs, now, time.time()
        counted = counted_step(pages) if shown else None
        reported = self.reports.newest(counted or 0) if shown else {}
        if reported and reported != self.report:
            self.take("callback", reported, time.time(), now)
        elif not reported and counted is not None and counted != self.counted:
            self.counted = counted
            self.take("counted", {"step": counted, "metrics": {}}, time.time(), now)

    def hear(self, content: Any) -> None:
        """Take what the callback posts; in any thread. Raises ValueError.

        Its process waits for the answer, so the steps that are counted now are those that it means.
        """
        self.reports.take(content, counted_step(read_pages(self.config.run_dir)) or 0)

    def ignore_file(self) -> None:
        """Take what the file has now for a report of an earlier round."""
        with contextlib.suppress(OSError):
            self.file = file_state(os.stat(self.config.progress_file))

    def poll_file(self, now: float) -> None:
        """Read the progress file if it has changed."""
        info = os.stat(self.config.progress_file)
        file = file_state(info)
        if file != self.file:
            self.file = file
            content = read_json(self.config.progress_file, PROGRESS_BYTES)
            report, problems = parse_progress(content)
            self.take("file", report, past(info.st_mtime, time.time()), now)
            for problem in problems:
                self.warn(problem)

    def warn(self, problem: str) -> None:
        """Say each problem once, and no more than a few."""
        if problem not in self.warned and len(self.warned) < 8:
            self.warned.add(problem)
            say(f"progress file {self.config.progress_file}: {problem}")

    def take(self, source: str, report: dict[str, Any], updated_at: float, now: float) -> None:
        """Make `report` the newest one, and estimate the rest from the rate since the first one."""
        step, total = report["step"], report.get("total_steps")
        if step != self.report.get("step"):
            self.moved, self.stepped_at = now, updated_at
        if source != self.source or step < self.first[1]:
            self.first = (now, step)
        since, start = self.first
        self.eta = None
        if total is not None and step >= total:
            self.eta = 0.0
        elif total is not None and step > start and now > since:
            self.eta = min(STEPS, round((total - step) * (now - since) / (step - start), 1))
        self.source, self.report, self.updated_at = source, report, updated_at

    def page(self, state: str) -> dict[str, Any]:
        """The object served at /progress."""
        config = self.config
        page: dict[str, Any] = {"version": 1, "namespace": config.namespace, "job": config.job}
        page.update(attempt=config.attempt, round=config.round)
        page.update(node_rank=config.node_rank, state=state)
        page.update(source=self.source, **self.report)
        if self.report:  # steps are counted from the first one on
            page["first_step"] = 1 if self.source == "counted" else self.first[1]
        if self.eta is not None:
            page["eta_seconds"] = self.eta
        if self.report:
            page.update(updated_at=self.updated_at, stepped_at=self.stepped_at)
        return page

    def workers(self) -> list[dict[str, Any]]:
        """Torchrun's workers, as in launch.json, with the `step` that each has made."""
        made = {rank: step for step, rank, _ in self.steps.values()}
        launch = next(read_records(self.config.run_dir, "launch"), {})
        return [
            {**w, "step": made.get(integer(w.get("rank")))} for w in objects(launch.get("workers"))
        ]

    def stepped(self) -> dict[int, tuple[int | None, float]]:
        """The rank of each process that made steps, and the last one's unix time, or earlier."""
        return {pid: (rank, at) for pid, (_, rank, at) in self.steps.items()}

    def still_seconds(self, now: float) -> float:
        """For how long no step has been made; 0 before the first and after the last."""
        return 0.0 if self.moved is None or self.is_complete else now - self.moved

    @property
    def is_complete(self) -> bool:
        """Whether the script has reported its last step."""
        return bool(self.report.get("step", -1) >= self.report.get("total_steps", math.inf))


def file_state(info: os.stat_result) -> tuple[int, ...]:
    """Differs between two reports in one file."""
    return info.st_mtime_ns, info.st_size, info.st_ino


@dataclass(frozen=True)
class Counted:
    """The page of a process that has made optimizer steps, as ddpjob_counts.py lays it out."""

    pid: int
    step: int
    rank: int | None
    local_rank: int | None
    others: int
    """Steps of optimizers that have made fewer than another one of the process."""


PAGE, PAGE_MAGIC = struct.Struct("=qqqqq"), 0x31424F4A504444


def read_pages(folder: str) -> list[Counted]:
    """All readable pages. They are read, not mapped: a file may be cut short at any time."""
    pages = []
    for name in names_in(folder, r"steps-[0-9]{1,10}\.page"):
        with contextlib.suppress(OSError, ValueError):
            content = read_bytes(os.path.join(folder, name), PAGE.size)
            if len(content) == PAGE.size:
                magic, step, rank, local_rank, others = PAGE.unpack(content)
                if magic == PAGE_MAGIC and 0 < step <= STEPS:
                    ranks = integer(rank), integer(local_rank)
                    pages.append(Counted(int(name[6:-5]), step, *ranks, others))
    return pages


def counted_step(pages: list[Counted]) -> int | None:
    """Steps that were counted in this pod's lowest local rank; None before the first."""
    counts = [(2**31 if p.local_rank is None else p.local_rank, p.step) for p in pages]
    lowest = min(counts)[0] if counts else 0
    return max((step for rank, step in counts if rank == lowest), default=None)


# By their names on the page: what Prometheus gets of it.
METRICS_OF_PAGE = {
    "step": ("ddpjob_step", "The last step of this round."),
    "stepped_at": (
        "ddpjob_last_step_timestamp_seconds",
        "Unix time of the last step or other sign of training.",
    ),
    "total_steps": ("ddpjob_total_steps", "The steps of the whole training."),
    "epoch": ("ddpjob_epoch", "The epoch, as the script reports it."),
    "loss": ("ddpjob_loss", "The last loss that the script has reported."),
    "samples_per_second": ("ddpjob_samples_per_second", "Of all ranks, as the script reports it."),
}


def metrics_text(page: Mapping[str, Any]) -> str:
    """`page` in Prometheus' text format."""
    named = ((name, str(page[name])) for name in ("namespace", "job", "attempt", "node_rank"))
    labels = ",".join(f'{name}="{escaped(value)}"' for name, value in named)
    lines: list[str] = []
    for field, (name, words) in METRICS_OF_PAGE.items():
        if field in page:
            value = float(page[field])  # Prometheus reads Python's nan and inf
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
            lines.append(f"{name}{{{labels}}} {value!r}")
    return "\n".join([*lines, ""])


def escaped(value: str) -> str:
    """A label's value."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Of a number, which comes as text.
VALUE_CHARS = 40
METRICS, METRIC_NAME_CHARS = 32, 63
# The largest integer that every JSON reader keeps.
STEPS = 2**53 - 1


def parse_progress(content: Any) -> tuple[dict[str, Any], list[str]]:
    """The good fields of a progress file, and what is wrong with the others.

    Raises ValueError where there is no step.
    """
    if not isinstance(content, dict) or integer(content.get("step"), 0, STEPS) is None:
        raise ValueError('must be one JSON object with "step", a whole number')
    report: dict[str, Any] = {"step": content["step"]}
    problems: list[str] = []
    for name in ("total_steps", "epoch", "loss", "samples_per_second"):
        value = content.get(name)
        good = integer(value, 1, STEPS) if name == "total_steps" else number(value)
        if good is not None:
            report[name] = good
        elif value is not None:
            rule = "a whole number above 0" if name == "total_steps" else "a number"
            problems.append(f"{name} must be {rule}, got {str(value)[:40]!r}")
    metrics = content.get("metrics")
    pairs = list(metrics.items()) if isinstance(metrics, dict) else []
    good_pairs = [(k, number(v)) for k, v in pairs if 0 < len(k) <= METRIC_NAME_CHARS]
    report["metrics"] = dict([(k, v) for k, v in good_pairs if v is not None][:METRICS])
    if metrics is not None and (not pairs and metrics != {} or len(report["metrics"]) < len(pairs)):
        rule = f"at most {METRICS} numbers with names of at most {METRIC_NAME_CHARS} characters"
        problems.append(f"metrics must be an object of {rule}")
    return report, problems


class Reports:
    """The newest report, and how far it was behind the counted steps."""

    def __init__(self) -> None:
        # Replaced as a whole, since requests come in threads of their own.
        self.state: tuple[dict[str, Any], int | None] = {}, None

    def take(self, content: Any, counted: int) -> None:
        """Take what was posted while `counted` steps had been made. Raises ValueError."""
        report, step, is_last = parse_status(content)
        known, ahead = self.state
        if step is None and ahead is None and is_last:  # it was done before it had told a step
            step = counted
        self.state = {**known, **report}, ahead if step is None else step - counted

    def newest(self, counted: int) -> dict[str, Any]:
        """The report, with the steps that have been counted since; empty before its first step."""
        report, ahead = self.state
        if ahead is None:
            return {}
        step = min(max(0, ahead + counted), report.get("total_steps", STEPS))
        return {**report, "step": step}


def parse_status(content: Any) -> tuple[dict[str, Any], int | None, bool]:
    """The good fields of what was posted, its step if it has one, and whether the training is over.

    Raises ValueError where it is no status.
    """
    status = content.get("trainerStatus") if isinstance(content, dict) else None
    if not isinstance(status, dict):
        raise ValueError('must be one JSON object with "trainerStatus", an object')
    values = {
        metric["name"]: value
        for metric in objects(status.get("metrics"))[: 2 * METRICS]
        if isinstance(metric.get("name"), str)
        and (value := figure(metric.get("value"))) is not None
    }
    step = values.pop("current_step", None)
    known = {
        "step": 0 if step is None else step,
        "total_steps": values.pop("total_steps", None),
        "epoch": values.pop("current_epoch", values.pop("epoch", None)),
        # The mean of the whole training, where it was too short for another one.
        "loss": values.pop("loss", values.get("train_loss")),
        "samples_per_second": values.pop("train_samples_per_second", None),
        "metrics": values,
    }
    report, _ = parse_progress(known)
    del report["step"]
    return report, step, status.get("progressPercentage") == 100


def figure(value: Any) -> Any:
    """The number that a text is, whole if it is written so; None where it is none."""
    if not isinstance(value, str):
        return None if number(value) is None else value
    for kind in (int, float) if len(value) <= VALUE_CHARS else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None
