"""What ranks leave behind where they are killed, and the end of the last round."""

import os
import sys
from pathlib import Path

import pytest

from ddpjob_agent.leftovers import remove_left
from tests import agentpod
from tests.unit.agent.scripts import script


def test_what_killed_ranks_leave_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["mine", "my_torch_", "torch", "nccl", "psm", "pymp", "sem.other", ".torch_x"]
    left = ["torch_12_34_0", "sem.mp-abc", "psm_0a1b", "nccl-xyz", "pymp-q", "torchelastic_u"]
    for name in (*kept, *left[:4]):
        (tmp_path / name).write_text("x")
    for name in left[4:]:
        (tmp_path / name / "below").mkdir(parents=True)
        (tmp_path / name / "below/file").write_text("x")
    remove_left(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    (tmp_path / "left").mkdir()
    (tmp_path / "left/torch_link").symlink_to(tmp_path / "kept")
    (tmp_path / "left/torch_nowhere").symlink_to(tmp_path / "none")
    remove_left(str(tmp_path / "left"))
    remove_left(str(tmp_path / "none"))
    assert os.listdir(tmp_path / "left") == [] and (tmp_path / "kept/file").exists()


# Fills the log, which nobody takes, and ends.
FULL = """
line = b"x" * 999 + b"\\n"
for _ in range(125):
    os.write(1, line)
{end}
"""


@pytest.mark.parametrize(
    ("end", "reason", "code"),
    [("", "Completed", 0), ("raise ValueError('boom')", "Exception", 1)],
    ids=["success", "failure"],
)
def test_sigterm_after_the_end_does_not_write_over_the_message(
    tmp_path: Path, end: str, reason: str, code: int
) -> None:
    """It comes while the agent waits for the log to take the last lines."""
    rank = {"RANK": "0", "LOCAL_RANK": "0"}  # of two, whose lines go through the agent
    with agentpod.pods(tmp_path) as pods:
        read, written = os.pipe()
        words = ["command", "--", sys.executable, script(pods, FULL.format(end=end))]
        pod = pods.start(*words, nproc=2, streams=(written, written), changes=rank)
        os.close(written)
        pod.until(lambda: pod.termination_log.stat().st_size)
        assert pod.summary["reason"] == reason
        pod.terminate()
        while os.read(read, 2**20):
            pass
        os.close(read)
        assert pod.wait() == code and pod.summary["reason"] == reason
