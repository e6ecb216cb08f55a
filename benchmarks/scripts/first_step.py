"""DDP up to its first step, and when it got there; a script that knows nothing of its launcher.

`first_step.py [SECONDS]`: it stays for so long after that.
"""

import json
import os
import sys
import time

BEGAN = time.time()  # before torch, whose import is a large part of a start


def started(pid: str) -> float:
    """When a process started, as seconds since the epoch (proc(5), to a hundredth of a second)."""
    with open(f"/proc/{pid}/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def main() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    reached = {"container": started("1"), "script": BEGAN, "torch": time.time()}
    dist.init_process_group("gloo")
    dist.barrier()  # the group connects when it is first used
    reached["group"] = time.time()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    torch.autograd.backward(F.cross_entropy(model(images), labels))
    optimizer.step()
    reached["step"] = time.time()
    line = "reached " + json.dumps({"rank": dist.get_rank(), **reached}) + "\n"
    os.write(1, line.encode())  # at once, for the ranks of a pod share its log
    time.sleep(float(sys.argv[1]) if sys.argv[1:] else 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
