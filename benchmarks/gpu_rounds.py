"""Restarts in place on GPUs: the real agent, a rank killed in each round; for `benchmarks.gpu`."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu_loop import Demand, last_line
from tests import agentpod
from tests.agentpod import Pod
from tests.cluster.tiers import ROOT
from tests.trainer import rounds
from tests.trainer.warm_pods import fork_servers

SCRIPT = ROOT / "benchmarks/scripts/gpu_round.py"
RESTARTS = 5
DEVICES = "/dev/nvidia"  # what a process that has spoken to the driver has open
MOST_MISSING = 64 * 2**20  # bytes, between two rounds: the context of one process takes more

ASKED = (
    "a fork server has no GPU open before it forks",
    f"all ranks of {RESTARTS} rounds in place are forked, and use their GPU",
    "each round makes a group of its own, and its all-reduce is right",
    f"the memory of killed ranks is free in the next round, up to {MOST_MISSING >> 20} MiB",
)


@dataclass(frozen=True)
class Rank:
    """What one rank of a round has reported, see SCRIPT."""

    pid: int
    warm: bool  # torch was there as the script began
    used: bool  # so was a CUDA context
    free: int  # bytes of its device, before it took its own
    total: int
    right: bool  # the all-reduce's result


@dataclass(frozen=True)
class Seen:
    """A round, once all of its ranks have reported."""

    ranks: Sequence[Rank]
    servers: int  # fork servers in the pod
    opened: Sequence[str]  # devices that these have open


def demands(processes: int, *, backend: str = "nccl") -> list[Demand]:
    """Go through the rounds in one pod with so many ranks, a GPU for each; judge what was seen."""
    with TemporaryDirectory() as folder, agentpod.pods(Path(folder)) as pods:
        try:
            operator = rounds.start(
                pods, SCRIPT.read_text(), nproc=processes, DDPJOB_BACKEND=backend
            )
            seen = go_through(operator, processes)
        except (AssertionError, OSError):
            log = pods.started[0].log if pods.started else ""
            return [(asked, f"failed: {last_line(log)}", False) for asked in ASKED]
    return judge(seen)


def go_through(operator: rounds.Operator, processes: int) -> list[Seen]:
    """All rounds, in each of which but the last one a rank is killed, another one every time."""
    pod = operator.head
    seen: list[Seen] = []
    for number in range(RESTARTS + 1):
        if number:
            os.kill(seen[-1].ranks[number % processes].pid, signal.SIGKILL)
            operator.until_failed()
            operator.go_on()
        seen.append(look(pod, number, processes))
    return seen


def look(pod: Pod, number: int, processes: int) -> Seen:
    """A round, as soon as all its ranks compute."""
    files = [pod.folder / f"round-{number}-{rank}" for rank in range(processes)]
    pod.until(partial(exist, files))
    servers = [server.pid for server in fork_servers(pod)]
    ranks = [Rank(**json.loads(file.read_text())) for file in files]
    return Seen(ranks, len(servers), [path for pid in servers for path in opened(pid, DEVICES)])


def exist(files: Sequence[Path]) -> bool:
    """Whether all of them do."""
    return all(file.exists() for file in files)


def opened(pid: int, prefix: str) -> list[str]:
    """The files with this prefix that a process has open."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(os.readlink(file))
    return sorted(path for path in found if path.startswith(prefix))


def judge(seen: Sequence[Seen]) -> list[Demand]:
    """The demands ASKED, of all rounds from the first to the last."""
    servers = [each.servers for each in seen]
    held = [path for each in seen for path in each.opened]
    ranks = [rank for each in seen for rank in each.ranks]
    warm = sum(rank.warm and not rank.used for rank in ranks)
    right = sum(all(rank.right for rank in each.ranks) for each in seen)
    first = seen[0].ranks
    missing = [
        max(old.free - new.free for old, new in zip(first, each.ranks, strict=True))
        for each in seen[1:]
    ]
    mebibytes = ", ".join(f"{size / 2**20:.0f}" for size in missing)
    measured = (
        (
            f"{len(held)} devices open, in {sum(servers)} looks at one",
            min(servers) > 0 and not held,
        ),
        (f"{warm} of {len(ranks)} ranks in {len(seen)} rounds", warm == len(ranks)),
        (f"right in {right} of {len(seen)} rounds", right == len(seen)),
        (
            f"{mebibytes} MiB less than in round 0, of {first[0].total / 2**20:.0f} MiB",
            max(missing) <= MOST_MISSING,
        ),
    )
    return [(asked, got, met) for asked, (got, met) in zip(ASKED, measured, strict=True)]
