"""What the kernel says of the pod's memory."""

from __future__ import annotations

import re

from ddpjob_agent.records import read_text

CGROUPS = "/sys/fs/cgroup"


def memory_cgroup(v1: str, v2: str) -> str:
    """The text of a file of this process's memory cgroup, which has two names."""
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = (f"{CGROUPS}/memory", v1) if controllers else (CGROUPS, v2)
        for folder in (mount + path, mount):  # in a container the path may be the host's
            text = read_text(f"{folder.rstrip('/')}/{name}")
            if text:
                return text
    return ""


def oom_kills() -> int:
    """The number of processes of this cgroup that the kernel has killed for want of memory."""
    match = re.search(
        r"^oom_kill (\d+)$", memory_cgroup("memory.oom_control", "memory.events"), re.M
    )
    return int(match.group(1)) if match else 0


def memory_limit() -> int | None:
    """The cgroup's limit in bytes; None without one."""
    text = memory_cgroup("memory.limit_in_bytes", "memory.max").strip()
    return int(text) if text.isdigit() and int(text) < 2**60 else None
