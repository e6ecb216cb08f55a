"""What ranks leave behind where they are killed."""

import os
from pathlib import Path

from ddpjob_agent.rounds import remove_left


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
    assert os.listdir(tmp_path / "left") == [] and (tmp_path / "kept/file").exists()


def test_a_folder_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    remove_left(str(tmp_path / "none"))
