"""A pod whose ranks have been started again often is as large as one in which they were not."""

import os
import signal
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from ddpjob_agent.leftovers import LEFT
from tests.agentpod import Pod, Pods
from tests.trainer.rounds import all_step, pid_of, train
from tests.trainer.warm_pods import is_fork_server

pytestmark = pytest.mark.deep

# DDPJOB_ROUNDS=100 has more of them, and sees smaller leaks: CONTRIBUTING.md.
ROUNDS = int(os.environ.get("DDPJOB_ROUNDS", "30"))
# By then all has been imported, and allocators have what they take.
FIRST = min(20, ROUNDS // 3)
# So many rounds are looked at together: a request may be under way, or a process about to end.
LOOKS = 5
# So much memory of a process may come and go: 4 MiB in 20 rounds are 0.2 MiB in each.
SLACK = 4 * 2**20

Sizes = dict[str, int]


def size(pod: Pod, temporary: Path) -> Sizes:
    """How large a pod is in all that a round might leave behind."""
    agent = psutil.Process(pod.process.pid)
    (server,) = filter(is_fork_server, agent.children())
    left = [entry.name for entry in temporary.iterdir() if not LEFT.match(entry.name)]
    found = {
        "processes": len(pod.processes()),
        "temporary files": len(left),  # torchrun's, which match, only PID 1 may remove
        "run folder": len(os.listdir(pod.folder / "run")),
    }
    for name, process in (("agent", agent), ("fork server", server)):
        found[f"threads of the {name}"] = process.num_threads()
        found[f"descriptors of the {name}"] = process.num_fds()
        found[f"memory of the {name}"] = process.memory_info().rss
    ranks = agent.children(recursive=True)
    return {**found, "descriptors of all": sum(each.num_fds() for each in ranks)}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("nproc", [1, 2])
def test_a_pod_whose_ranks_were_started_often_is_no_larger(pods: Pods, nproc: int) -> None:
    temporary = pods.root / "tmp"
    temporary.mkdir()
    operator = train(pods, nproc=nproc, TMPDIR=str(temporary))
    (pod,) = pods.started
    sizes: list[Sizes] = []
    for number in range(ROUNDS):
        if number >= FIRST:
            operator.until(lambda page: page["running"])
            sizes.append(size(pod, temporary))
        os.kill(pid_of(pod, number, nproc - 1), signal.SIGKILL)
        operator.until_failed()
        operator.go_on()
        all_step(pods, number + 1, nproc)
    for name in sizes[0]:
        before = max(each[name] for each in sizes[:LOOKS])
        after = min(each[name] for each in sizes[-LOOKS:])
        print(f"{name}: {before} after {FIRST} rounds, {after} after {ROUNDS}")
        assert after <= before + SLACK * name.startswith("memory"), (name, sizes)
