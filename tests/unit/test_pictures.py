"""The pictures of the docs show what was measured and recorded, and fetch nothing."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import recovery_plot, session
from benchmarks.recovery_plot import Figure, Row
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


def test_the_plot_has_the_figures_of_the_page() -> None:
    drawn = recovery_plot.draw(recovery_plot.PAGE.read_text())
    assert recovery_plot.PICTURE.read_text() == drawn, "make pictures"


TABLE = """
## {}

| fault | reason | restart decided | all nodes run | all ranks step | times |
| --- | --- | --- | --- | --- | --- |
| a rank is killed | `Signal` | **3.1** (2.8–3.5) | **5.6** (5.3–6.7) | **12.0** ({}–15.7) | 3 |
"""


def test_the_tables_of_a_page_are_read() -> None:
    titles = (*recovery_plot.TITLES, *recovery_plot.MORE_TITLES)
    page = "".join(TABLE.format(title, "10.6") for title in titles)
    row = Row(
        "a rank is killed", Figure(3.1, 2.8, 3.5), Figure(5.6, 5.3, 6.7), Figure(12, 10.6, 15.7)
    )
    assert recovery_plot.tables(page) == [[row]] * 4


@pytest.mark.parametrize(
    ("page", "named"),
    [
        (TABLE.format(recovery_plot.TITLES[0], "10.6"), recovery_plot.TITLES[1]),
        ("".join(TABLE.format(title, "soon") for title in recovery_plot.TITLES), "soon"),
    ],
)
def test_a_page_that_cannot_be_drawn_is_an_error(page: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        recovery_plot.draw(page)


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
