"""Failures of one rank in a group of real torch processes, and the noise of the others."""

from tests.api.failures.table import Cause, Kind, exception, exit_code, killed, text

HEAD = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()
victim = rank == {rank}
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.ones(2, 4)


def train(steps=10):
    for step in range(steps):
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()


train()
"""
PYTHON = {"launcher": "python"}
THREE = {"launcher": "python", "nnodes": 3}
NODE = {"nnodes": 1, "nprocPerNode": 2}


def script(body: str, rank: int = 1) -> str:
    """All ranks make ten steps, then this; `victim` is true on rank `rank`."""
    return HEAD.format(rank=rank).lstrip() + text(body)


FORWARD = """
    if victim:
        rows = torch.ones(2, 5)
    train()
"""
BACKWARD = """
    def check(gradient):
        if victim:
            raise ArithmeticError("gradient norm 1e9")

    next(iter(model.parameters())).register_hook(check)
    train()
"""
OPTIMIZER = """
    if victim:
        def step():
            raise KeyError("exp_avg")
        optimizer.step = step
    train()
"""
ROWS = """
    class Rows(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, i):
            if victim and i == 20:
                {what}
            return torch.ones(4)

    for rows in DataLoader(Rows(), batch_size=4, num_workers=1):
        train(1)
"""
SPAWN = """
    import os, signal, torch, torch.distributed as dist, torch.multiprocessing as mp

    def work(local_rank, node):
        rank = node * 2 + local_rank
        dist.init_process_group("gloo", rank=rank, world_size=4)
        dist.barrier()
        if rank == 3:
            {what}
        dist.barrier()

    if __name__ == "__main__":
        mp.spawn(work, args=(int(os.environ["RANK"]),), nprocs=2)
"""
NAN = """
    if victim:
        rows = torch.full((2, 4), float("nan"))
    loss = model(rows).sum()
    if not torch.isfinite(loss):
        raise RuntimeError(f"loss is {loss.item()} at step 10")
    train(100)
"""
STATE = """
    if victim:
        torch.nn.Linear(4, 1).load_state_dict(torch.nn.Linear(8, 1).state_dict())
    train(100)
"""
SHAPES = """
    import os
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4 + dist.get_rank(), 1)
    torch.nn.parallel.DistributedDataParallel(model)
"""
SIZES = """
    dist.all_reduce(torch.ones(3 if victim else 2))
    dist.barrier()
"""
SLOW = """
    from datetime import timedelta
    group = dist.new_group(timeout=timedelta(seconds=8))
    if victim:
        time.sleep(60)  # reads its shard from a slow disk
    dist.all_reduce(torch.ones(1), group=group)
"""
TAKEN = """
    import os, socket, sys, time
    import torch.distributed as dist
    if os.environ["RANK"] == "0":
        other = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    dist.init_process_group("gloo")
"""
WRONG_PORT = """
    import os
    from datetime import timedelta
    import torch.distributed as dist
    seconds = 600
    if os.environ["RANK"] == "1":
        os.environ["MASTER_PORT"], seconds = "1", 3
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
"""
BEFORE = """
    import os
    import torch.distributed as dist
    if os.environ["RANK"] == "0":
        raise ValueError("no such data set")
    dist.init_process_group("gloo")
"""
LAUNCHER = """
    import os, time
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    print("together", flush=True)
    if os.environ["RANK"] == "0":
        os.kill(os.getppid(), 9)
        time.sleep(600)
    dist.barrier()
"""
ECHOED = """
    import logging, socket

    def hang_up():
        # gloo keeps its connections until its process ends, whatever is destroyed before.
        for name in os.listdir("/proc/self/fd"):
            try:
                connection = socket.socket(fileno=os.dup(int(name)))
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    if victim:
        try:
            raise ValueError("no such label")
        finally:
            hang_up()
            time.sleep(3)  # the others end meanwhile
    try:
        train(100000)
    except Exception:
        logging.exception("training failed")
        sys.exit(1)
"""
# Past torch's own clean-up, which on a busy machine may abort a rank whose peers go on.
GONE = """
    train(1 if victim else 1000)
    os._exit(0)
"""
GONE_AND_HANGS = """
    from datetime import timedelta

    if victim:
        os._exit(0)
    # As with NCCL, nobody tells it that the other one has gone.
    dist.distributed_c10d._get_default_store().wait(["rows"], timedelta(seconds=900))
"""
LEFT = ("ended after step 11 while rank 0, past step 11, still waited for it; all ranks must",)
HANG = {"hangTimeoutSeconds": 8}

KINDS = (
    Kind(
        "exception in forward",
        exception("RuntimeError", "mat1 and mat2 shapes", rank=2),
        script(FORWARD, 2),
        THREE,
    ),
    Kind(
        "exception in backward",
        exception("ArithmeticError", "gradient norm 1e9", rank=0),
        script(BACKWARD, 0),
        PYTHON,
    ),
    Kind(
        "exception in the optimizer, two nodes of two ranks, under torchrun",
        exception("KeyError", "'exp_avg'", rank=3, node_rank=1),
        script(OPTIMIZER, 3),
        {"nnodes": 2, "nprocPerNode": 2},
    ),
    Kind(
        "exception before the group has met",
        exception("ValueError", "no such data set", rank=0),
        BEFORE,
        PYTHON,
    ),
    Kind(
        "exception in a DataLoader worker",
        exception("LookupError", "row 20 is missing"),
        script(ROWS.format(what='raise LookupError("row 20 is missing")')),
        PYTHON,
    ),
    Kind(
        "killed DataLoader worker",
        exception("RuntimeError", "DataLoader worker (pid"),
        script(ROWS.format(what="os.kill(os.getpid(), time.sleep(1) or signal.SIGKILL)")),
        PYTHON,
    ),
    Kind(
        "exception in a process of mp.spawn",
        exception("ValueError", "no such label"),
        SPAWN.format(what='raise ValueError("no such label")'),
        PYTHON,
    ),
    Kind(
        "killed process of mp.spawn",
        exception("ProcessExitedException", "process 1 terminated with signal SIGKILL"),
        SPAWN.format(what="os.kill(os.getpid(), signal.SIGKILL)"),
        PYTHON,
    ),
    Kind(
        "sys.exit(3) amid collectives",
        exit_code(3),
        script("if victim:\n    sys.exit(3)\ntrain(1000)"),
        PYTHON,
    ),
    Kind(
        "SIGKILL amid collectives",
        killed("SIGKILL", rank=0),
        script("if victim:\n    os.kill(os.getpid(), signal.SIGKILL)\ntrain(1000)", 0),
        THREE,
    ),
    Kind(
        "SIGTERM to itself amid collectives, under torchrun",
        killed("SIGTERM", node_rank=0),
        script("if victim:\n    os.kill(os.getpid(), signal.SIGTERM)\ntrain(100000)"),
        NODE,
    ),
    Kind(
        "SIGABRT amid collectives",
        killed("SIGABRT"),
        script("if victim:\n    os.abort()\ntrain(1000)"),
        PYTHON,
    ),
    Kind(
        "echo that is logged before sys.exit(1), 3 s before the cause ends",
        exception("ValueError", "no such label"),
        script(ECHOED),
        PYTHON,
    ),
    Kind(
        "killed torchrun of rank 0",
        killed("SIGKILL", "torchrun itself was killed", rank=0),
        LAUNCHER,
        {},
    ),
    Kind(
        "NaN loss, and a script that raises",
        exception("RuntimeError", "loss is nan at step 10"),
        script(NAN),
        PYTHON,
    ),
    Kind(
        "checkpoint of another model",
        exception("RuntimeError", "size mismatch for weight"),
        script(STATE),
        PYTHON,
    ),
    Kind(
        "no memory for a tensor",
        exception("RuntimeError", "allocate memory"),
        script("if victim:\n    torch.empty(10**15)\ntrain(1000)"),
        PYTHON,
    ),
    Kind(
        "NCCL without a GPU",
        exception("RuntimeError", "at least one CUDA device", rank=0),
        'import torch.distributed as dist\ndist.init_process_group("nccl")',
        {**PYTHON, "nnodes": 1},
    ),
    Kind(
        "models of different shapes",
        exception("RuntimeError", "appears not to match"),
        SHAPES,
        PYTHON,
    ),
    Kind(
        "tensors of different sizes in one collective",
        Cause("Hang", 1, message=("tensors of different sizes",)),
        script(SIZES),
        {**PYTHON, **HANG},
        says=Cause("Hang", None, message=("waits for other ranks, in",)),
        why="gloo says nothing: it waits for bytes, and all ranks stand in a collective",
    ),
    Kind(
        "slow rank, and a collective that times out",
        Cause("Hang", 1, message=("node rank 1 in vain", "Timed out waiting")),
        script(SLOW),
        PYTHON,
    ),
    Kind(
        "rank that ends with 0 while the others go on",
        Cause("PeerEnded", 1, message=LEFT),
        script(GONE),
        PYTHON,
    ),
    Kind(
        "rank that ends with 0 while the others go on, under torchrun",
        Cause("PeerEnded", 1, message=LEFT),
        script(GONE),
        {},
    ),
    Kind(
        "rank 0 ends with 0 while the others go on, under torchrun",
        Cause("PeerEnded", 0, message=("ended after step 11 while rank 1, past step 11,",)),
        script(GONE, rank=0),
        {},
    ),
    Kind(
        "rank that ends with 0 while its neighbour goes on, under torchrun",
        Cause("PeerEnded", 1, node_rank=0, message=LEFT),
        script(GONE),
        NODE,
    ),
    Kind(
        "rank that ends with 0 while its neighbour hangs, under torchrun",
        Cause("PeerEnded", 1, node_rank=0, message=("ended after step 10 while rank 0, past ",)),
        script(GONE_AND_HANGS),
        {**NODE, **HANG},
    ),
    Kind(
        "rank that ends with 0 while one of another node hangs, under torchrun",
        Cause("PeerEnded", 1, message=("ended after step 10 while ",)),
        script(GONE_AND_HANGS),
        HANG,
    ),
    Kind(
        "ranks with 8 and with 10 batches, under torchrun",
        Cause("PeerEnded", 1, node_rank=0, message=("after step 8 while rank 0, past step 8,",)),
        script("train(8 if victim else 10)").replace("\ntrain()\n", "\n"),
        NODE,
    ),
    Kind(
        "hang in a collective: one rank is in another than the others",
        Cause("Hang", 1, message=("in barrier", "in _engine_run_backward")),
        script("dist.barrier() if victim else train(1)"),
        {**THREE, **HANG},
    ),
    Kind(
        "hang in a collective of two ranks, each in another one",
        Cause("Hang", None, message=("in barrier", "in _engine_run_backward")),
        script("dist.barrier() if victim else train(1)"),
        {**PYTHON, **HANG},
    ),
    Kind(
        "hang in a collective: one rank of three is in another, under torchrun on one node",
        Cause("Hang", 1, 0, message=("in barrier", "in _engine_run_backward")),
        script("dist.barrier() if victim else train(1)"),
        {"nnodes": 1, "nprocPerNode": 3, **HANG},
    ),
    Kind(
        "hang outside a collective",
        Cause("Hang", 1, message=("waits for no other rank", "in read_shard")),
        script("def read_shard():\n    time.sleep(600)\nif victim:\n    read_shard()\ntrain()"),
        {**PYTHON, **HANG},
    ),
    Kind(
        "slow rank, with hangTimeoutSeconds below the time-out of collectives",
        Cause("Hang", 0, message=("waits for no other rank",)),
        script("if victim:\n    time.sleep(600)\ntrain()", 0),
        {**PYTHON, **HANG},
    ),
    Kind(
        "stopped rank",
        Cause("Hang", 1, message=("is stopped (SIGSTOP)",)),
        script("if victim:\n    os.kill(os.getpid(), signal.SIGSTOP)\ntrain()"),
        {**PYTHON, **HANG},
    ),
    Kind(
        "master port that is taken",
        exception("DistNetworkError", "EADDRINUSE", rank=0),
        TAKEN,
        PYTHON,
    ),
    Kind(
        "master port that refuses",
        exception("DistNetworkError", "trying to connect to", ", 1)"),
        WRONG_PORT,
        PYTHON,
    ),
)
