import json
import math
from pathlib import Path

from ddptrain.progress import ProgressFile


def test_a_report_holds_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ProgressFile(path).write(step=7, total_steps=460, epoch=7 / 23, metrics={"test_accuracy": 0.5})
    assert json.loads(path.read_text()) == {
        "step": 7,
        "total_steps": 460,
        "epoch": 0.304,
        "metrics": {"test_accuracy": 0.5},
    }
    assert [child.name for child in tmp_path.iterdir()] == ["progress.json"]


def test_a_loss_that_is_not_a_number_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ProgressFile(path).write(step=1, total_steps=2, epoch=1.0, loss=math.nan)
    assert math.isnan(json.loads(path.read_text())["loss"])


def test_reports_are_due_at_once_and_then_after_the_interval(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "progress.json", interval_seconds=3600)
    assert progress.due()
    progress.write(step=1, total_steps=2, epoch=0.5)
    assert not progress.due()
    progress.write(step=2, total_steps=2, epoch=1.0)  # the last one need not be due
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 2
    often = ProgressFile(tmp_path / "often.json", interval_seconds=0)
    often.write(step=1, total_steps=2, epoch=0.5)
    assert often.due()
