"""Which launcher a command line becomes, and what is said of its options."""

import json
import subprocess
import sys
from typing import Any

import pytest

from ddpjob.convert.command import FLAGS, name_of
from ddpjob.convert.objects import convert
from tests.foreign import note_at, notes_of, pytorch_job, spec_of, template

GPUS = {"limits": {"nvidia.com/gpu": 2}}


def with_command(*words: str, args: list[str] | None = None, **fields: Any) -> Any:
    """A PyTorchJob of three Workers with this command; `spec_…` are fields of the spec."""
    spec = {name[5:]: fields.pop(name) for name in list(fields) if name.startswith("spec_")}
    pod = template(command=list(words), args=args, **fields)
    return pytorch_job(worker={"template": pod}, **spec)


def start(job: Any) -> dict[str, Any]:
    """The fields of the DDPJob that say what is started."""
    fields = ("launcher", "command", "args", "nprocPerNode")
    return {name: value for name, value in spec_of(job).items() if name in fields}


LAUNCH = ["python", "-m", "torch.distributed.launch"]
LAUNCHERS = [
    ("torchrun train.py", {"args": ["train.py"]}),
    ("python3.11 -u -m torch.distributed.run a.py", {"args": ["a.py"]}),
    ("torchrun -m pkg.train --lr 1", {"args": ["-m", "pkg.train", "--lr", "1"]}),
    (
        "torchrun --nnodes=3 --node_rank $(RANK) --master-addr=a a.py --nnodes=9",
        {"args": ["a.py", "--nnodes=9"]},
    ),
    ("torchrun --nproc-per-node 4 a.py", {"args": ["a.py"], "nprocPerNode": 4}),
    ("torchrun --tee=3 -r3 --log_dir /logs a.py", {"args": ["a.py"]}),
    ("python -m torch.distributed.launch --use_env a.py", {"args": ["a.py"]}),
    (
        "python -m torch.distributed.launch --nproc_per_node=2 a.py x",
        {"command": LAUNCH, "args": ["a.py", "x"], "nprocPerNode": 2},
    ),
    (
        "python -m torch.distributed.launch --use-env --no-python ./run",
        {"command": ["torchrun", "--no-python"], "args": ["./run"]},
    ),
    (
        "torchrun --signals-to-handle SIGTERM a.py",
        {"command": ["torchrun", "--signals-to-handle", "SIGTERM"], "args": ["a.py"]},
    ),
    (
        "tune run --rdzv_endpoint=a:1 recipe --config c",
        {"command": ["tune", "run", "--nnodes=$(PET_NNODES)"], "args": ["recipe", "--config", "c"]},
    ),
    ("accelerate launch a.py x", {"launcher": "accelerate", "args": ["a.py", "x"]}),
    (
        "python -m accelerate.commands.launch --multi_gpu --num_machines=3 --num-processes 6 "
        "--machine_rank $(RANK) --main_process_ip=a --mixed_precision=no a.py",
        {"launcher": "accelerate", "args": ["a.py"], "nprocPerNode": 2},
    ),
]


@pytest.mark.parametrize(("line", "expected"), LAUNCHERS, ids=lambda x: str(x)[:60])
def test_a_launcher_is_kept_without_its_rendezvous(line: str, expected: dict[str, Any]) -> None:
    words = line.split()
    assert start(with_command(*words)) == expected
    assert start(with_command(*words[:1], args=words[1:])) == expected


@pytest.mark.parametrize(
    "line", ["python a.py --lr 1", "python3 -u a.py", "/usr/bin/python3.10 -m pkg"]
)
def test_a_script_of_python_is_one_process_on_each_node(line: str) -> None:
    words = line.split()
    expected = {"launcher": "python", "args": [word for word in words[1:] if word != "-u"]}
    assert start(with_command(*words)) == expected
    assert start(with_command(*words, resources=GPUS)) == expected | {"nprocPerNode": 1}


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-c", "print()"],
        ["python3", "-O", "a.py"],
        ["python3"],
        ["torchrun", "--nnodes"],
        ["torchrun", "--standalone=1", "a.py"],
        ["torchrun", "--option-of-tomorrow", "1", "a.py"],
        ["accelerate", "config"],
        ["bash", "-c", "exec torchrun a.py"],
        ["./train"],
        [""],
    ],
    ids=" ".join,
)
def test_every_other_program_is_carried_over_as_it_is(command: list[str]) -> None:
    expected = {"launcher": "none", "command": command}
    assert start(with_command(*command)) == expected


def test_without_a_command_the_image_has_it_and_that_is_said() -> None:
    job = with_command(args=["--lr", "1"])
    assert start(job) == {"launcher": "none", "args": ["--lr", "1"]}
    assert "entry point runs, without ddpjob's agent" in note_at(convert(job), ".command")


def test_other_options_of_accelerate_need_a_command_with_the_rendezvous_of_ddpjob() -> None:
    words = ["--num_processes=6", "--mixed_precision", "bf16", "--fsdp_version", "2", "a.py"]
    found = start(with_command("accelerate", "launch", "--use_fsdp", *words))
    assert found["launcher"] == "accelerate" and found["args"] == ["a.py"]
    assert found["command"][:4] == ["python3", "-u", "-m", "accelerate.commands.launch"]
    options = ["--use_fsdp", "--mixed_precision", "bf16", "--fsdp_version", "2"]
    assert found["command"][-5:] == options
    for option in ("--num_machines", "--num_processes", "--main_process_port"):
        value = found["command"][found["command"].index(option) + 1]
        assert value.startswith("$("), option
    assert "--multi_gpu" not in found["command"]  # accelerate refuses it beside --use_fsdp


def test_accelerate_hears_of_several_processes() -> None:
    job = with_command("accelerate", "launch", "--gpu_ids", "0", "a.py")
    assert "--multi_gpu" in start(job)["command"]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    assert "--multi_gpu" not in start(job)["command"]


def test_a_total_that_the_nodes_cannot_share_is_refused() -> None:
    job = with_command("accelerate", "launch", "--num_processes=4", "a.py")
    with pytest.raises(ValueError, match="--num_processes: must be a multiple of the 3 nodes, got"):
        convert(job)


PROCESSES: list[tuple[Any, dict[str, Any], int | None, str]] = [
    ("4", {}, 4, ""),
    ("1", {}, None, ""),
    ("auto", GPUS, None, ""),
    ("2", GPUS, None, ""),
    ("1", GPUS, 1, ""),
    ("cpu", GPUS, 1, "not carried over: cpu: one process starts"),
    ("cpu", {}, None, "not carried over: cpu: one process starts"),
    ("auto", {}, None, "changed: auto: one process starts"),
    ("gpu", {}, None, "changed: gpu: one process starts"),
]


@pytest.mark.parametrize(("declared", "resources", "expected", "said"), PROCESSES)
def test_processes_on_each_node(
    declared: Any, resources: Any, expected: int | None, said: str
) -> None:
    job = with_command("torchrun", "a.py", resources=resources, spec_nprocPerNode=declared)
    assert spec_of(job).get("nprocPerNode") == expected
    notes = [note for note in notes_of(job) if note.startswith("spec.nprocPerNode: ")]
    assert bool(said) == bool(notes) and all(said in note for note in notes)


@pytest.mark.parametrize("declared", ["two", "0", -1, 1.5, True, []])
def test_other_processes_are_refused(declared: Any) -> None:
    with pytest.raises(ValueError, match="spec.nprocPerNode: must be auto, cpu, gpu or a number"):
        convert(with_command("torchrun", "a.py", spec_nprocPerNode=declared))


def test_the_command_line_outranks_the_field() -> None:
    job = with_command("torchrun", "--nproc_per_node=2", "a.py", spec_nprocPerNode="4")
    assert spec_of(job)["nprocPerNode"] == 2
    job = with_command("torchrun", "--nproc_per_node=$(N)", "a.py", spec_nprocPerNode="4")
    assert spec_of(job)["nprocPerNode"] == 4
    assert "not carried over: the command line has" in note_at(convert(job), "spec.nprocPerNode")


def test_a_single_process_hears_that_the_world_is_the_nodes() -> None:
    for command, count in ((["python", "a.py"], None), (["./train"], 4)):
        job = with_command(*command, spec_nprocPerNode="4")
        assert "4: the program starts once on each node" in note_at(convert(job), "nprocPerNode")
        assert spec_of(job).get("nprocPerNode") == count


SAID = [
    (["torchrun", "--rdzv_id=secret", "a.py"], "--rdzv_id: left out, because ddpjob sets"),
    (["torchrun", "--nnodes=1:4", "a.py"], "not carried over: --nnodes MIN:MAX: nnodes is the"),
    (["torchrun", "--tee=3", "--role=x", "a.py"], "not carried over: --tee, --role: ddpjob's"),
    (["torchrun", "--no-python", "a"], "--no-python: carried over as command"),
    (["python", "-m", "torch.distributed.launch", "a.py"], "gives the script --local-rank"),
    (["/opt/bin/python", "a.py"], "ddpjob starts python3 of the image's PATH"),
    (["sh", "-c", "secret"], "changed: carried over as it is: ddpjob finds no launcher and"),
    (["sh", "-c", "x --master_addr=secret"], "--master_addr: must agree with ddpjob's variables"),
    (["python3", "a.py", "tcp://secret-master-0:1"], "names a pod of the other operator"),
]


@pytest.mark.parametrize(("command", "said"), SAID, ids=lambda x: " ".join(x)[:60])
def test_what_is_different_is_said_without_the_texts_themselves(
    command: list[str], said: str
) -> None:
    notes = [note for note in notes_of(with_command(*command)) if "[pytorch].command: " in note]
    assert any(said in note for note in notes), notes
    assert "secret" not in "".join(notes)


def options(program: str) -> dict[str, bool]:
    """The options of a program's own parser: the long names, and whether each takes a value."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if ended.returncode:
        pytest.skip(ended.stderr.strip().splitlines()[-1])
    found: dict[str, bool] = json.loads(ended.stdout.splitlines()[-1])
    return found


DUMP = """
import json
names = {o.lstrip("-").replace("-", "_"): a.nargs != 0
         for a in parser._actions for o in a.option_strings if o.startswith("--")}
print(json.dumps(names))
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("program", "least"),
    [
        ("from torch.distributed.run import get_args_parser as p", 20),
        ("from accelerate.commands.launch import launch_command_parser as p", 100),
    ],
)
def test_a_launcher_has_no_option_that_is_unknown_here(program: str, least: int) -> None:
    theirs = options(f"{program}; parser = p(){DUMP}")
    for name in theirs.keys() - {"help", "print_completion"}:
        assert name_of(f"--{name}") == name
        assert (name not in FLAGS) == theirs[name], name
    assert len(theirs) > least
