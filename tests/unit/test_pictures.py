"""The pictures of the docs show what was measured and recorded, and fetch nothing."""

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import session
from benchmarks.recovery import page, plot, runs
from benchmarks.recovery.__main__ import missed
from benchmarks.recovery.peer import MOST_SECONDS
from benchmarks.recovery.runs import Figure, Run
from benchmarks.recovery.series import SERIES
from benchmarks.session import Line
from tests.cluster.tiers import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_fetches_nothing(path: Path) -> None:
    text = path.read_text()
    assert ElementTree.fromstring(text).tag == f"{{{NAMESPACE}}}svg"
    rest = text.replace(NAMESPACE, "", 1)
    assert not re.search(r"//|@import|@font-face|href|url\((?!#)", rest)


def test_page_and_plot_have_the_figures_that_were_measured() -> None:
    found = runs.read()
    assert page.PAGE.read_text() == page.page(found), "python -m benchmarks.recovery.page"
    assert plot.PICTURE.read_text() == plot.draw(found), "python -m benchmarks.recovery.page"


def recovered(fault: str, *steps: float, series: str = "in place") -> list[Run]:
    """So many runs of one fault."""
    return [Run(series, "2027-01-15", "A; B, C", fault, "Signal", 0.1, 0.2, step) for step in steps]


def test_runs_are_summed_up_fault_by_fault() -> None:
    killed, lost = recovered("killed", 2.0, 1.0, 3.0), recovered("lost", 9.0)
    one, other = runs.rows([killed[0], *lost, *killed[1:]])
    assert (one.fault, one.times, one.step.median) == ("killed", 3, 2.0)
    assert (one.step.least, one.step.most) == (1.0, 3.0)
    assert one.step.p95 == pytest.approx(2.9)
    assert other.step == Figure(9.0, 9.0, 9.0, 9.0)


def test_a_run_without_an_end_is_longer_than_all_others() -> None:
    ended = recovered("killed", 1.0, 2.0, 4.0)
    waited = replace(ended[0], reason="", decided=None, running=None, step=math.inf)
    (row,) = runs.rows([replace(run, reason="", decided=None) for run in ended] + [waited])
    assert (row.decided, row.running) == (None, None)
    assert row.step == Figure(3.0, 1.0, math.inf, math.inf)
    (row,) = runs.rows([waited])
    assert page.cell(row.decided) == "–"
    assert page.cell(row.step) == f"**over {MOST_SECONDS:g}** (over {MOST_SECONDS:g})"


def test_the_file_of_runs_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = {
        "in place": recovered("a", 1.25, 2.0),
        "new pods": recovered("a", 3.0, series="new pods"),
    }
    (run,) = recovered("a", math.inf, series="PyTorchJob")
    written["PyTorchJob"] = [replace(run, reason="", decided=None, running=None)]
    path = tmp_path / "runs.csv"
    path.write_text(runs.text(written))
    assert runs.read(path) == written
    path.write_text(path.read_text().replace("1.250", "soon"))
    with pytest.raises(ValueError, match="no run: .*soon"):
        runs.read(path)


def test_what_cannot_be_drawn_is_an_error() -> None:
    series = {name: recovered("a", 1.0, series=name) for name in SERIES}
    plot.draw(series)
    with pytest.raises(ValueError, match="same faults"):
        plot.draw({**series, "operator killed": recovered("b", 1.0)})
    with pytest.raises(ValueError, match="the axis ends"):
        plot.draw({**series, "silent nodes": recovered("c", 1000.0)})
    drawn = plot.draw({**series, "PyTorchJob": recovered("a", math.inf)})
    assert f"no step in {MOST_SECONDS:g} s" in drawn


def test_what_took_longer_than_promised_is_told() -> None:
    fault = SERIES["new pods"].faults[0].name
    assert missed("new pods", recovered(fault, 7.0, 8.0, 9.0)) == []
    (line,) = missed("new pods", recovered(fault, 7.0, 8.1, 9.0))
    assert line == f"missed: new pods: {fault}: 8.10 s of 8.0 s"
    assert missed("PyTorchJob", recovered(SERIES["PyTorchJob"].faults[0].name, math.inf)) == []


RUN = [
    "logs in …",
    "digits-checkpoint  Running  nodes 2/2  restarts 0",
    "[node 0] world size 2, gloo on cpu",
    "[node 0] epoch 80/300 step 1840/6900",
    "$ kill -9 4711",
    "[node 0] RuntimeError: Connection reset by peer",
    "digits-checkpoint restarts in place, as round 1: rank 1, Signal: killed by SIGKILL",
    "  log: …/digits-checkpoint-0-1.log",
    "digits-checkpoint  Restarting  nodes 2/2  restarts 1",
    "digits-checkpoint  Running  nodes 2/2  restarts 1",
    "[node 0] resuming from …/step-00001800-attempt-0.pt",
    "[node 0] epoch 79/300 step 1817/6900",
    "[node 0] test accuracy 0.9944 (358/360) after 6900 steps",
    "digits-checkpoint  Succeeded  nodes 2/2  restarts 1",
]


def test_a_recorded_run_is_cut_to_its_story() -> None:
    told = session.story([Line(0.0, text) for text in RUN])
    assert [line.text if line else "…" for line in told] == [*RUN[1:5], "…", *RUN[6:]]


@pytest.mark.parametrize("absent", RUN[1:5] + RUN[6:])
def test_a_run_that_went_otherwise_is_not_drawn(absent: str) -> None:
    with pytest.raises(ValueError, match="has not printed"):
        session.story([Line(0.0, text) for text in RUN if text != absent])


def test_the_recorded_run_came_back_after_a_rank_was_killed() -> None:
    shown = "".join(ElementTree.parse(session.PICTURE).getroot().itertext()).replace("\xa0", " ")
    assert "as round 1: rank 1, Signal: killed by SIGKILL" in shown
    assert "Succeeded" in shown and f"$ {session.COMMAND}" in shown
