"""The progress of a script: its own reports, and the steps that the hooks counted."""

import json
import math
import os
import struct
from pathlib import Path

import pytest

from ddpjob_agent.hooks import ddpjob_counts
from ddpjob_agent.progress import (
    METRICS_OF_PAGE,
    Progress,
    counted_step,
    metrics_text,
    read_pages,
)
from tests.unit.agent.samples import config


def progress_with(tmp_path: Path, text: str | bytes, **changes: str) -> Progress:
    progress = Progress(config(tmp_path, **changes))
    path = Path(progress.config.progress_file)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    progress.poll(0.0)
    return progress


def test_a_full_report_is_served_as_it_was_written(tmp_path: Path) -> None:
    text = '{"step": 12, "total_steps": 100, "epoch": 1, "loss": Infinity, "metrics": {"lr": 1e-3}}'
    page = progress_with(tmp_path, text).page("running")
    updated_at = page.pop("updated_at")
    assert page.pop("stepped_at") == updated_at
    assert page == {
        "version": 1,
        "namespace": "default",
        "job": "digits",
        "attempt": 0,
        "round": 0,
        "node_rank": 0,
        "state": "running",
        "source": "file",
        "first_step": 12,
        "step": 12,
        "total_steps": 100,
        "epoch": 1.0,
        "loss": math.inf,
        "metrics": {"lr": 0.001},
    }
    assert updated_at == pytest.approx(Path(tmp_path / "run/progress.json").stat().st_mtime)


def test_the_lines_of_the_docs_write_a_correct_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(__file__).parents[3] / "docs/progress.md"
    lines = docs.read_text().split("```python\n")[1].split("```")[0]
    progress = progress_with(tmp_path, "")
    monkeypatch.setenv("DDPJOB_PROGRESS_FILE", progress.config.progress_file)
    exec(lines, {"rank": 0, "step": 3, "total": 9, "loss": 0.5})
    progress.poll(1.0)
    page = progress.page("running")
    assert (page["step"], page["total_steps"], page["loss"]) == (3, 9, 0.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"step": 1, "loss": "low"}', "loss must be a number, got 'low'"),
        ('{"step": 1, "total_steps": 0}', "total_steps must be a whole number above 0, got '0'"),
        ('{"step": 1, "epoch": 1' + "0" * 400 + "}", "epoch must be a number"),
        ('{"step": 1, "metrics": [1]}', "metrics must be an object"),
        (json.dumps({"step": 1, "metrics": {"m" * 64: 1}}), "names of at most 63 characters"),
        (json.dumps({"step": 1, "metrics": {str(i): i for i in range(40)}}), "at most 32 numbers"),
    ],
)
def test_a_wrong_field_is_left_out_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    progress = progress_with(tmp_path, text)
    progress.poll(1.0)
    page = progress.page("running")
    assert page["step"] == 1
    assert {"loss", "total_steps", "epoch"}.isdisjoint(page)
    assert len(page["metrics"]) in (0, 32)
    assert capsys.readouterr().err.count(problem) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"loss": 1}',
        '{"step": -1}',
        '{"step": 9007199254740992}',
        "[" * 9000,
        b'{"step": 1, "x": "\xff"}',
        '{"step": 1, "x": "' + "a" * 16384 + '"}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_garbled_file_is_refused_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert progress_with(tmp_path, text).page("running")["source"] == "none"
    assert "progress file" in capsys.readouterr().err


def test_a_garbled_file_does_not_undo_the_report_before_it(tmp_path: Path) -> None:
    progress = progress_with(tmp_path, '{"step": 7}')
    path = Path(progress.config.progress_file)
    path.write_text("half a fi")
    progress.poll(1.0)
    path.unlink()
    os.mkfifo(path)  # does not block
    progress.poll(2.0)
    assert progress.page("running")["step"] == 7


def test_the_rest_is_estimated_from_the_rate_since_the_first_report(tmp_path: Path) -> None:
    progress = progress_with(tmp_path, '{"step": 40, "total_steps": 100}')
    assert "eta_seconds" not in progress.page("running")
    path = Path(progress.config.progress_file)
    path.write_text('{"step": 60,  "total_steps": 100}')
    progress.poll(10.0)  # 20 steps in 10 s, 40 to go
    assert progress.page("running")["eta_seconds"] == 20.0
    path.write_text('{"step": 100,   "total_steps": 100}')
    progress.poll(11.0)
    assert progress.page("running")["eta_seconds"] == 0.0


def count(folder: Path, pid: int, *, step: int, local_rank: int | None) -> Path:
    """A page as a process of this pid would have left it."""
    (folder / "run").mkdir(exist_ok=True)
    path = folder / "run" / f"steps-{pid}.page"
    rank = -1 if local_rank is None else local_rank
    page = [ddpjob_counts.MAGIC, step, rank, rank]
    path.write_bytes(struct.pack("=4q", *page).ljust(ddpjob_counts.PAGE_BYTES, b"\0"))
    return path


def counted(tmp_path: Path) -> int | None:
    return counted_step(read_pages(str(tmp_path / "run")))


def test_counted_steps_are_those_of_the_lowest_local_rank(tmp_path: Path) -> None:
    count(tmp_path, 1, step=5, local_rank=1)
    count(tmp_path, 2, step=3, local_rank=0)
    count(tmp_path, 3, step=4, local_rank=0)  # a helper process of the same rank
    count(tmp_path, 4, step=9, local_rank=None)
    count(tmp_path, 5, step=-1, local_rank=0)
    assert counted(tmp_path) == 4


def test_pages_that_a_script_has_spoilt_cost_neither_the_others_nor_the_agent(
    tmp_path: Path,
) -> None:
    count(tmp_path, 2, step=3, local_rank=0)
    count(tmp_path, 3, step=2**60, local_rank=0)
    run = tmp_path / "run"
    (run / "steps-4.page").write_bytes(b"")
    (run / "steps-5.page").write_bytes(b"x" * 39)
    with (run / "steps-6.page").open("wb") as sparse:
        sparse.truncate(2**40)
    os.mkfifo(run / "steps-7.page")
    (run / "steps-8.page").mkdir()
    (run / "steps-9.page").symlink_to("/dev/zero")
    (run / "steps-10.page").symlink_to("steps-10.page")
    (run / f"steps-{'9' * 200}.page").touch()
    assert counted(tmp_path) == 3


def test_the_scripts_own_file_comes_before_counted_steps(tmp_path: Path) -> None:
    count(tmp_path, 1, step=50, local_rank=0)
    progress = progress_with(tmp_path, "")
    page = progress.page("running")
    assert (page["source"], page["first_step"]) == ("counted", 1)
    assert progress.page("running")["step"] == 50
    Path(progress.config.progress_file).write_text('{"step": 1}')
    progress.poll(1.0)
    progress.poll(2.0)
    assert progress.page("running")["source"] == "file"
    assert progress.page("running")["step"] == 1
    alone = progress_with(tmp_path, "", DDPJOB_PROGRESS="file")
    assert alone.page("running")["source"] == "none"


def test_metrics_are_prometheus_text_with_escaped_labels() -> None:
    place = {"namespace": "team", "job": 'a"\\\nb', "attempt": 2, "node_rank": 1}
    report = {"step": 12, "stepped_at": 1.5, "loss": math.nan, "epoch": -math.inf}
    labels = '{namespace="team",job="a\\"\\\\\\nb",attempt="2",node_rank="1"}'
    lines = list[str]()
    for field, value in zip(report, ("12.0", "1.5", "nan", "-inf"), strict=True):
        name, words = METRICS_OF_PAGE[field]
        lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name}{labels} {value}"]
    assert sorted(metrics_text({**place, **report}).splitlines()) == sorted(lines)


def test_a_report_of_the_round_before_is_none_of_this_one(tmp_path: Path) -> None:
    """Its file may be elsewhere, where it is not ours to remove."""
    before = progress_with(tmp_path, '{"step": 41}')
    after = Progress(before.config)
    after.ignore_file()
    after.poll(1.0)
    assert after.page("running")["source"] == "none"
