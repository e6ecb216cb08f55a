"""Commands that no launcher of ddpjob replaces start the ranks that they ask for."""

import re
from pathlib import Path

import pytest

from ddpjob.convert.objects import convert
from ddpjob.documents import to_yaml
from tests.foreign import pytorch_job, template
from tests.trainer.local_run import LocalRun

pytestmark = pytest.mark.deep
SCRIPT = """
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {int(total)} met, {sys.argv[1:]}\\n", end="", flush=True)
dist.destroy_process_group()
"""
# What a notebook makes of a function, with a rendezvous in the shell's variables.
NOTEBOOK = f"""
program_path=$(mktemp -d)
read -r -d '' SCRIPT << EOM
{SCRIPT}
EOM
printf "%s" "$SCRIPT" > "$program_path/ephemeral_script.py"
torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK --master_addr=$MASTER_ADDR \\
    --master_port=$MASTER_PORT "$program_path/ephemeral_script.py"
"""
OPTIONS = ["--num_cpu_threads_per_process=1", "--num_processes=4"]
CASES = {
    "no-python": ["torchrun", "--no-python", "python3", "meet.py"],
    "launch": ["python", "-m", "torch.distributed.launch", "meet.py"],
    "notebook": ["bash", "-c", NOTEBOOK],
    "accelerate": ["accelerate", "launch", *OPTIONS, "meet.py"],
}


@pytest.mark.parametrize("name", CASES)
def test_the_command_starts_two_ranks_on_each_of_two_nodes(name: str, tmp_path: Path) -> None:
    command = CASES[name]
    if command[0] == "accelerate":
        pytest.importorskip("accelerate")
    role = {"replicas": 1, "template": template(command=command)}
    job = convert(pytorch_job(worker=role, master=role, nprocPerNode="2")).job
    job["spec"]["successPolicy"] = "All"  # so that all ranks have printed
    (tmp_path / "meet.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(to_yaml(job))
    run = LocalRun(tmp_path, "--directory", "out", "job.yaml")
    assert run.process.wait(240) == 0, run.output
    logs = (tmp_path / "out" / "digits" / "logs").glob("*.log")
    found = re.findall(r"rank (\d+): (\d+) met", "".join(log.read_text() for log in logs))
    assert sorted(found) == [(str(rank), "4") for rank in range(4)]
