"""What tests ask of warm pods: their processes, and how their scripts were started."""

import psutil

from tests.agentpod import Pod, Pods

EVIDENCE = "import sys\nprint('is warm:', 'torch' in sys.modules)\n"


def fork_servers(pod: Pod) -> list[psutil.Process]:
    """The agent's fork server, and torchrun's once it has one: forked from it, with its words."""
    return [process for process in pod.processes() if is_fork_server(process)]


def is_fork_server(process: psutil.Process) -> bool:
    """Whether a process is a fork server by its words."""
    try:
        return "forkserver" in process.cmdline()
    except psutil.Error:
        return False


def script(pods: Pods, text: str) -> str:
    """Path of a script, the same for all pods."""
    path = pods.root / "train.py"
    path.write_text(text)
    return str(path)


def assert_warm(pod: Pod, ranks: int = 1) -> None:
    assert pod.log.count("is warm: True") == ranks and "is warm: False" not in pod.log, pod.log


def assert_cold(pod: Pod, ranks: int = 1) -> None:
    assert pod.log.count("is warm: False") == ranks and "is warm: True" not in pod.log, pod.log
