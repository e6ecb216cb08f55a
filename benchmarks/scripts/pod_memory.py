"""`python3 pod_memory.py`, in a pod: the memory of all its other processes, as JSON in MiB."""

import json
import os
import re


def main() -> None:
    """Print it. The kernel counts in KiB (proc_pid_smaps(5))."""
    sums = {"Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) != os.getpid():
            with open(f"/proc/{name}/smaps_rollup", encoding="ascii") as file:
                for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", file.read(), re.MULTILINE):
                    if key in sums:
                        sums[key] += int(value)
    private = sums["Private_Clean"] + sums["Private_Dirty"]
    print(json.dumps({"proportional": sums["Pss"] / 1024, "private": private / 1024}))


if __name__ == "__main__":
    main()
