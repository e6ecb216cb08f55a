"""The played part of a cluster, in a process of its own: nodes, pods that run, their agents.

`python -m benchmarks.player KUBECONFIG` says `ready`, and then does what it reads, line by line:
`fail JOBS RANK` fails this rank of so many jobs at once, and answers with the Unix time of each
failure by the job's `namespace/name`. Where agents wait to be asked on, rank 0's tells the operator
of it; elsewhere the pod ends. A job of the name FLAPPING fails by itself, again and again.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddpjob import names
from ddpjob.json_depth import Body
from tests.chaos.agents import Agents, Doors, Play
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client, Kubeconfig
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.podstatus import End, Life, Pod
from tests.cluster.processes import RUN
from tests.cluster.tiers import ROOT

NODES = 20
GPUS = {"nvidia.com/gpu": "10k"}
FLAPPING = "flapping"
"""The name of a job that flaps: its rank 0 fails so many seconds after it has started."""
FLAP_SECONDS = 2.0
EXIT_CODE = 7
FAILED = End(EXIT_CODE, json.dumps({"version": 1, "reason": "ExitCode", "exit_code": EXIT_CODE}))


class Player:
    """Plays the pods, and keeps what is needed to have one of them fail."""

    def __init__(self, client: Client, doors: Doors) -> None:
        self._doors = doors
        self._agents = Agents(doors, Play(lambda *_: None), lambda deed: None, self._end)
        self._jobs: dict[str, dict[str, Pod]] = {}  # pods by uid, by `namespace/name` of the job
        self.kubelet: ScriptedKubelet

    def address(self, pod: Pod) -> str:
        """Where rank 0's agent listens."""
        return self._doors.address(pod)

    def life(self, pod: Pod) -> Life:
        """All run until they are told to end, but for the one that flaps."""
        if flaps(pod) and pod["metadata"]["labels"][names.RANK_LABEL] == "0":
            return Life(run_seconds=FLAP_SECONDS, end=FAILED)
        return Life()

    def see(self, kind: str, pod: Pod) -> None:
        """Take in an event of a pod."""
        labels, meta = pod["metadata"].get("labels") or {}, pod["metadata"]
        if names.JOB_LABEL not in labels:
            return
        pods = self._jobs.setdefault(f"{meta['namespace']}/{labels[names.JOB_LABEL]}", {})
        pods[meta["uid"]] = pod
        if kind == "DELETED":
            del pods[meta["uid"]]
        self._agents.see(pod, gone=kind == "DELETED")

    def fail(self, jobs: int, rank: int) -> dict[str, float]:
        """Fail a rank of so many jobs, evenly spread over all; when each has."""
        failed: dict[str, float] = {}
        apart = max(1, len(self._jobs) // jobs)
        for job in list(self._jobs)[::apart][:jobs]:
            for pod in self._jobs[job].values():
                labels = pod["metadata"]["labels"]
                if labels[names.RANK_LABEL] == str(rank) and self._fail(pod, rank):
                    failed[job] = time.time()
        return failed

    def _fail(self, pod: Pod, rank: int) -> bool:
        meta, labels = pod["metadata"], pod["metadata"]["labels"]
        attempt = int(labels[names.ATTEMPT_LABEL])
        group = self._agents.group(labels[names.JOB_UID_LABEL], attempt)
        if group is not None:
            return group.fail(rank, EXIT_CODE)
        with suppress(LookupError):  # it has ended already
            self.kubelet.finish(meta["namespace"], meta["name"], FAILED)
            return True
        return False

    def _end(self, pod: Body, code: int, message: str) -> None:
        with suppress(LookupError):
            meta = pod["metadata"]
            self.kubelet.finish(meta["namespace"], meta["name"], End(code, message))


def flaps(pod: Pod) -> bool:
    """Whether the pod is of the job that flaps."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(names.JOB_LABEL) == FLAPPING)


async def _play(options: argparse.Namespace) -> None:
    nodes = [f"node-{number}" for number in range(NODES)]
    apart = ["node-apart"]
    config = Kubeconfig.read(options.kubeconfig)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with Doors() as doors:
        async with (
            Client(config) as client,
            Client(config) as heart,  # behind 8,000 bindings a heartbeat would come too late
            Client(config) as other,  # nor are other jobs' pods in line behind those that flap
            fake_nodes(heart, *nodes, *apart, capacity=GPUS),
        ):
            player = Player(client, doors)
            player.kubelet = ScriptedKubelet(
                client,
                nodes,
                player.life,
                bind=(lambda pod: not flaps(pod)) if options.bind else None,
                address=player.address,
                see=player.see,
            )
            flapping = ScriptedKubelet(
                other, apart, player.life, bind=flaps if options.bind else None
            )
            async with player.kubelet, flapping:
                print("ready", flush=True)
                while line := (await reader.readline()).decode():
                    _, jobs, rank = line.split()
                    print(json.dumps(player.fail(int(jobs), int(rank))), flush=True)


@dataclass
class Played:
    """The process, as the benchmarks talk to it."""

    process: "subprocess.Popen[str]"

    def fail(self, jobs: int, rank: int = 1) -> dict[str, float]:
        """Fail a rank of so many jobs; the Unix time of each by the job's `namespace/name`."""
        said, heard = _pipes(self.process)
        said.write(f"fail {jobs} {rank}\n")
        said.flush()
        failed: dict[str, float] = json.loads(heard.readline())
        if len(failed) != jobs:
            raise RuntimeError(f"{len(failed)} of {jobs} jobs could fail")
        return failed


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


@contextmanager
def playing(server: ApiServer, *, bind: bool = True) -> Iterator[Played]:
    """All pods run on played nodes; without `bind`, once a scheduler has bound them."""
    command = [sys.executable, "-m", "benchmarks.player", str(server.kubeconfig)]
    with subprocess.Popen(
        command + ["--bind"] * bind,
        cwd=ROOT,
        env={**os.environ, RUN: str(server.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if _pipes(process)[1].readline() != "ready\n":
                raise RuntimeError("the played kubelet did not start")
            yield Played(process)
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.player", description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--bind", action="store_true", help="bind pods too, as a scheduler would")
    with suppress(KeyboardInterrupt):
        asyncio.run(_play(parser.parse_args()))


if __name__ == "__main__":
    main()
