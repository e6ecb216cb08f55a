"""Which GPUs there are, and which node sees which. No GPU is needed: all listings are fakes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.cli.local import listed_gpus, shares
from ddpjob.errors import InvalidJob
from ddpjob.local.gpus import AMD, NVIDIA, deal, gpus, listed, variables
from tests.builders import job

FOUR = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-0000-0000-0000-000000000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22222222-0000-0000-0000-000000000000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-33333333-0000-0000-0000-000000000000)
GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-44444444-0000-0000-0000-000000000000)
"""
PARTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaaaaaa-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbbbbbb-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-0000-0000-0000-000000000000)
"""


def program(folder: Path, text: str, code: int = 0) -> dict[str, str]:
    """An environment in which nvidia-smi prints `text` to whom asks it for a list."""
    (folder / "listing").write_text(text)
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\n[ "$*" = -L ] && cat {folder}/listing\nexit {code}\n')
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ("", ""),
        ("-1", ""),
        (" 2 ,0 ", "2 0"),
        ("0,-1,1", "0"),  # what follows is not seen
        ("GPU-1111,MIG-aa", "GPU-1111 MIG-aa"),
        ("NoDevFiles", ""),  # Slurm's word for none
        ("9" * 5000, ""),
    ],
)
def test_the_callers_variable_says_which_there_are(setting: str, seen: str) -> None:
    assert gpus(NVIDIA, {"CUDA_VISIBLE_DEVICES": setting}) == tuple(seen.split())


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(0, 4))
def test_no_device_is_dealt_twice_and_the_first_go_to_the_first_node(
    counts: list[int], spare: int
) -> None:
    devices = [str(number) for number in range(sum(counts) + spare)]
    dealt = deal(devices, counts)
    assert [len(part) for part in dealt] == counts
    assert [name for part in dealt for name in part] == devices[: sum(counts)]


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        (None, "4,GPU-d,6"),
        ("0", "4"),  # numbers count within the pod, as on a cluster
        ("2,1", "6,GPU-d"),
        ("0,3", "4"),
        ("-1", ""),
        ("GPU-elsewhere", ""),
        ("4,5,6", ""),
        ("GPU-d", "GPU-d"),
    ],
)
def test_what_the_job_sets_itself_counts_within_its_share(own: str | None, seen: str) -> None:
    job_sets = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    found = variables({NVIDIA: ("4", "GPU-d", "6")}, job_sets)
    assert found == {"CUDA_VISIBLE_DEVICES": seen, "HIP_VISIBLE_DEVICES": "-1"}


def test_a_node_without_a_share_sees_nothing_whatever_it_sets() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
    assert variables({}, {}) == hidden
    assert variables({}, {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}) == hidden


def test_a_listing_gives_numbers_or_where_a_gpu_is_partitioned_uuids() -> None:
    assert listed(FOUR) == ("0", "1", "2", "3")
    a, b, whole = listed(PARTED)
    assert (a[:8], b[:8], whole[:8]) == ("MIG-aaaa", "MIG-bbbb", "GPU-2222")
    assert listed("No devices found.\n") == listed("") == ()
    assert listed("  MIG 1g (UUID: MIG-a)\n") == ()


def test_nvidia_smi_is_asked_then_the_drivers_files(tmp_path: Path) -> None:
    root, empty = tmp_path / "root", {"PATH": "/nonexistent"}
    assert gpus(NVIDIA, empty, root) == ()
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (root / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert gpus(NVIDIA, empty, root) == ("0", "1")
    (root / "dev").mkdir()
    for name in ("nvidia5", "nvidiactl", "nvidia-uvm", "nvidia0p1"):
        (root / "dev" / name).touch()
    assert gpus(NVIDIA, empty, root) == ("0",), "a container has its own devices alone in /dev"
    assert gpus(NVIDIA, program(tmp_path, FOUR), root) == ("0", "1", "2", "3")
    assert gpus(NVIDIA, program(tmp_path, FOUR, code=9), root) == ("0",), "a driver that fails"


def test_amd_devices_are_counted_within_what_rocr_shows(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, gpu in enumerate(("0", "4711", "4712")):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu}\n")
    assert gpus(AMD, {}, tmp_path) == ("0", "1")
    assert gpus(AMD, {"HIP_VISIBLE_DEVICES": "1"}, tmp_path) == ("1",)
    assert gpus(AMD, {"ROCR_VISIBLE_DEVICES": "3,4,5"}, tmp_path) == ("0", "1", "2")
    assert gpus(AMD, {"ROCR_VISIBLE_DEVICES": ""}, tmp_path) == ()


NVIDIA_GPU, AMD_GPU = "nvidia.com/gpu", "amd.com/gpu"


def test_every_node_gets_devices_of_its_own(tmp_path: Path) -> None:
    env = {"PATH": "", "CUDA_VISIBLE_DEVICES": "7,5,3,1"}
    dealt = shares(job(resources={"limits": {NVIDIA_GPU: 2}}), env, tmp_path)
    assert dealt == [{NVIDIA: ("7", "5")}, {NVIDIA: ("3", "1")}]
    assert listed_gpus(dealt) == "GPUs: node 0 has 7,5, node 1 has 3,1"
    assert listed_gpus(shares(job(), env, tmp_path)) == ""


def test_kinds_and_makers_are_dealt_apart(tmp_path: Path) -> None:
    env = {"PATH": "", "CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "4,5"}
    mixed = job(
        resources={"limits": {AMD_GPU: 2}},
        master={"resources": {"limits": {NVIDIA_GPU: 1, "nvidia.com/mig-1g.10gb": "1"}}},
    )
    assert shares(mixed, env, tmp_path) == [
        {NVIDIA: ("0", "1"), AMD: ()},
        {NVIDIA: (), AMD: ("4", "5")},
    ]


def test_more_than_there_are_is_refused(tmp_path: Path) -> None:
    ours = job(resources={"limits": {NVIDIA_GPU: 2}})
    field = "spec.resources.limits[nvidia.com/gpu]: "
    with pytest.raises(InvalidJob) as refused:
        shares(ours, {"PATH": "", "CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path)
    assert str(refused.value) == (
        f"{field}must be at most 2 for all nodes together on this machine "
        "(CUDA_VISIBLE_DEVICES is '0,1'), got 4 in all"
    )
    with pytest.raises(InvalidJob, match="must be at most 0 .* on this machine, got 4 in all"):
        shares(ours, {"PATH": ""}, tmp_path)


def test_a_refusal_names_the_part_of_the_job_that_asks(tmp_path: Path) -> None:
    master = {"resources": {"limits": {AMD_GPU: 1}}}
    ours = job(master=master, resources={"limits": {"gpu.intel.com/i915": 1}})
    with pytest.raises(InvalidJob, match=r"^spec.master.resources.limits\[amd.com/gpu\]: "):
        shares(ours, {}, tmp_path)
    with pytest.raises(InvalidJob, match=r"^spec.resources.limits\[gpu.intel.com/i915\]: GPUs of"):
        shares(ours, {"HIP_VISIBLE_DEVICES": "0"}, tmp_path)
