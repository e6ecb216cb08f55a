"""What torchrun's failures become in launch.json, and that the record costs no training."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpjob_agent
from ddpjob_agent.launch import Launch, describe
from ddpjob_agent.records import RECORD_BYTES, read_records

MISSING = (
    "RuntimeError: Missing key(s) in state_dict: " + '"layers.self_attn.q_proj.weight", ' * 400
)


def failure(rank: int, message: Any) -> SimpleNamespace:
    """One of torchrun's, as far as it is read."""
    return SimpleNamespace(local_rank=rank, pid=100 + rank, exitcode=1, message=message)


def test_long_errors_of_all_ranks_leave_a_record_that_is_read(tmp_path: Path) -> None:
    """`@record` writes the whole message, and once more in the traceback."""
    stack = f"Traceback (most recent call last):\n{MISSING}\n"
    message = {"message": MISSING, "extraInfo": {"py_callstack": stack, "timestamp": "9"}}
    launch = Launch(str(tmp_path))
    launch.failures = [describe(rank, failure(rank, message)) for rank in range(8)]
    launch.write()
    assert 8 * len(MISSING) < RECORD_BYTES < len(json.dumps([message] * 8))
    (record,) = read_records(str(tmp_path), "launch")
    assert [found["rank"] for found in record["failures"]] == list(range(8))
    error = record["failures"][7]["error"]
    assert error["message"] == MISSING[:4000]
    assert error["extraInfo"]["py_callstack"] == stack[-4000:]


@pytest.mark.parametrize("message", ["<NONE>", ["boom"]])
def test_what_no_record_has_written_is_no_error(message: Any) -> None:
    assert describe(3, failure(3, message)) == {
        "rank": 3,
        "local_rank": 3,
        "pid": 103,
        "exitcode": 1,
        "error": None,
    }


@pytest.mark.parametrize(
    "message",
    [
        {"message": "boom", "extraInfo": {"py_callstack": None}},
        {},
    ],
)
def test_an_error_of_another_shape_is_text(message: dict[str, Any]) -> None:
    error = describe(0, failure(0, message))["error"]
    assert isinstance(error["message"], str) and ("boom" in error["message"]) == bool(message)
    assert isinstance(error["extraInfo"]["py_callstack"], str)


# torchrun, whose workers have all ended well; on a disk that is full by then.
TORCHRUN = """
import os
from types import SimpleNamespace

def parse_args(arguments):
    return SimpleNamespace(
        training_script=arguments[0], module=False, no_python=False,
        node_rank="0", nnodes="1", master_port="1", rdzv_backend="static",
    )

def main(arguments):
    os.symlink("/dev/full", os.path.join(os.environ["DDPJOB_RUN_DIR"], "launch.json.tmp"))
    print("trained")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux'")
def test_a_full_disk_fails_no_training_that_is_done(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "run.py").write_text(TORCHRUN)
    call = "import sys; from ddpjob_agent import launch; launch.launch_torchrun(sys.argv[1:])"
    sources = Path(ddpjob_agent.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", call, __file__],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(sources)])}
        | {"DDPJOB_LAUNCHER": "1", "DDPJOB_RUN_DIR": str(tmp_path), "DDPJOB_SUCCESS_POLICY": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert (tmp_path / "launch.json.tmp").is_symlink() and not (tmp_path / "launch.json").exists()
