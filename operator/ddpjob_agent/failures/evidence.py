"""Finds the failures of a pod by what its processes left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config
from ddpjob_agent.failures.failures import LAUNCHERS, Failure, make_failure, recorded_by_torch
from ddpjob_agent.records import integer, objects, past

# A Python process that passes a child's exit code on ends at most so long after the child.
PASSED_ON_SECONDS = 2.0
# A shell may tidy up before, and Python with torch takes long to end on a busy machine.
TIDY_SECONDS = 30.0


def ended_at(record: Mapping[str, Any], now: float) -> float:
    """The time at which the process of a record ended, as far as is known."""
    return past(record.get("ended_at", record.get("time")), now)


def speakers(
    records: list[dict[str, Any]], end: float, stepped: Mapping[int, tuple[int | None, float]]
) -> list[dict[str, Any]]:
    """The records that explain an end at `end`, of the records of many processes.

    Whoever has made steps is a rank. Of the other processes of a rank the last one speaks, if it
    ended shortly before and no step followed: a probe that failed long ago was handled. `stepped`
    has the rank of each process that made steps, and the time of the last.
    """
    last: dict[int | None, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: ended_at(r, end)):
        last[integer(record.get("rank"))] = record

    def speaks(record: dict[str, Any]) -> bool:
        pid, rank, begun = (record.get(name) for name in ("pid", "rank", "time"))
        if integer(pid) in stepped:
            return True
        steps = [at for of, at in stepped.values() if of == integer(rank)]
        is_last = record is last[integer(rank)] and max(steps, default=0.0) <= past(begun, end)
        return is_last and end - ended_at(record, end) <= TIDY_SECONDS

    return [record for record in records if speaks(record)]


def exit_code_of(record: Mapping[str, Any]) -> int | None:
    """With which code a process with this record ended; 1 after an uncaught exception."""
    return 1 if "type" in record else integer(record.get("code"), 1, 255)


@dataclass
class Evidence:
    """All that is known of the processes of a pod which ended badly."""

    errors: dict[int | None, dict[str, Any]]
    """Uncaught exceptions, by pid."""
    exits: dict[int | None, dict[str, Any]]
    """Last words, by pid."""
    stepped: Mapping[int, tuple[int | None, float]]
    now: float

    def passed_on(
        self, pid: int | None, worker: Mapping[str, Any], own: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """The records of other processes whose end `worker` (`pid`) passed on as its own.

        `own`: how it called `sys.exit`, if it is a Python process. That passes on at once; a shell
        may tidy up before.
        """
        said, codes = own or worker, [worker.get("exitcode")]
        record = self.errors.get(pid) or {}
        if only_tells_of_child(record):  # once told, it takes as long as the machine to end
            said, codes = record, list(range(1, 256))
        end = past(said.get("time", worker.get("ended_at")), self.now)
        limit = TIDY_SECONDS if own is None else PASSED_ON_SECONDS
        others = [r for r in (*self.errors.values(), *self.exits.values()) if r.get("pid") != pid]
        rank = integer(worker.get("rank"))
        if rank is not None:
            others = [r for r in others if integer(r.get("rank")) in (rank, None)]
        return [
            record
            for record in speakers(others, end, self.stepped)
            if exit_code_of(record) in codes
            and (integer(record.get("pid")) in self.stepped or end - ended_at(record, end) <= limit)
        ]

    def judge(self, pid: int | None, worker: Mapping[str, Any], crowd: bool) -> list[Failure]:
        """The failure of one worker; several where it only started those that failed."""
        record, words = self.errors.get(pid) or recorded_by_torch(worker), self.exits.get(pid)
        says_why = words and (words.get("message") or words.get("handled") or words.get("stderr"))
        if record is not None and not only_tells_of_child(record) or says_why:
            return [make_failure(worker, record, crowd, self.now, words)]
        found = []
        for other in self.passed_on(pid, worker, words):
            ranks = {name: other.get(name) for name in ("rank", "local_rank")}
            of = {**worker, **(ranks if worker.get("rank") is None else {})}
            of["exitcode"] = exit_code_of(other)
            is_error = "type" in other
            known = (other, None) if is_error else (None, other)
            found.append(make_failure(of, known[0], crowd, self.now, known[1]))
        return found or [make_failure(worker, record, crowd, self.now, words)]


def only_tells_of_child(record: Mapping[str, Any]) -> bool:
    """Whether a launcher reports that its only process has failed, as accelerate does."""
    is_launcher = LAUNCHERS.fullmatch(str(record.get("program"))) is not None
    return is_launcher and record.get("type") == "CalledProcessError"


def gather(
    errors: Iterable[dict[str, Any]],
    exits: Iterable[dict[str, Any]],
    stepped: Mapping[int, tuple[int | None, float]],
    now: float,
) -> Evidence:
    """The evidence in the hooks' records; `stepped` as for `speakers`."""
    by_pid = [{integer(r.get("pid")): r for r in records} for records in (errors, exits)]
    return Evidence(by_pid[0], by_pid[1], stepped, now)


def find_failures(
    config: Config, launch: Any, launcher: dict[str, Any], evidence: Evidence
) -> list[Failure]:
    """Every failed worker that is known of.

    `launch` is what the torchrun shim wrote, None with another command; `launcher` is the
    launcher's own end, as if it were a worker.
    """
    told = evidence.passed_on(launcher["pid"], launcher, None)  # torchrun, behind a shell
    workers: dict[Any, dict[str, Any]] = {}
    for source in (launch or {}, evidence.errors.get(launcher["pid"]) or {}, *told):
        for worker in objects(source.get("failures")) + objects(source.get("workers")):
            if worker.get("exitcode") not in (0, None):
                workers.setdefault(integer(worker.get("pid")), {}).update(worker)
    if not workers and launch is None:
        workers = {launcher["pid"]: launcher}
    crowd = config.nnodes * config.nproc_per_node > 1
    return [f for pid, worker in workers.items() for f in evidence.judge(pid, worker, crowd)]
