"""One rank of `benchmarks.gpu_rounds`: takes most of its device, reports, computes until killed.

On GPUs, or on CPUs with a stand-in for a GPU's memory: a memfd, which lasts as a GPU's memory does,
until the last process that has it open has closed its files.
"""

import json
import os
import sys
import time

IS_WARM = "torch" in sys.modules

import torch  # noqa: E402 - only now: it may be there
import torch.distributed as dist  # noqa: E402 - the same

WAS_USED = torch.cuda.is_initialized()
SHARE = 0.6  # of the device: a second process with as much does not fit
STAND_IN = 256 * 2**20  # bytes that a device has where there is no GPU

number, rank, local_rank = (
    int(os.environ[name]) for name in ("DDPJOB_ROUND", "RANK", "LOCAL_RANK")
)
backend = os.environ["DDPJOB_BACKEND"]
device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
stand_in = f"gpu-{os.environ['DDPJOB_POD_IP']}-{local_rank}"


def memory() -> tuple[int, int]:
    """Free bytes of this rank's device, and all."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    taken = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                if os.readlink(path).startswith(f"/memfd:{stand_in}"):
                    taken += os.stat(path).st_size
        except OSError:  # it has ended, or is not ours to look at
            continue
    return STAND_IN - taken, STAND_IN


def take(size: int) -> object:
    """Take so many bytes of the device; on a GPU they are written to."""
    if device.type == "cuda":
        return torch.ones(size, dtype=torch.uint8, device=device)
    file = os.memfd_create(stand_in)
    os.ftruncate(file, size)
    return file


if device.type == "cuda":
    torch.cuda.set_device(device)
    torch.ones(1, device=device)  # the context is in the figures of every round alike
free, total = memory()
held = take(int(SHARE * total))
dist.init_process_group(backend, device_id=device if device.type == "cuda" else None)
world = dist.get_world_size()
ranks = torch.full((1_000_000,), float(rank + 1), device=device)
dist.all_reduce(ranks)
report = {
    "pid": os.getpid(),
    "warm": IS_WARM,
    "used": WAS_USED,
    "free": free,
    "total": total,
    "right": bool((ranks == world * (world + 1) / 2).all()),
}
with open(f"round-{number}-{rank}.tmp", "w") as file:
    json.dump(report, file)
os.rename(f"round-{number}-{rank}.tmp", f"round-{number}-{rank}")
while True:
    dist.all_reduce(ranks)
    ranks.fill_(float(ranks[0]) / world)
    time.sleep(0.01)
