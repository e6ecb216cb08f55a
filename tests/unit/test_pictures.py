"""The pictures of the docs show what was measured and recorded, and fetch nothing."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import session
from benchmarks.recovery import page, plot, runs
from tests.cluster.tiers import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_fetches_nothing(path: Path) -> None:
    text = path.read_text()
    assert ElementTree.fromstring(text).tag == f"{{{NAMESPACE}}}svg"
    rest = re.sub(r'<!DOCTYPE[^>]*>|xmlns(:\w+)?="[^"]*"', "", text)  # names, which nobody fetches
    assert not re.search(r'//|@import|@font-face|href(?!="#)|url\((?!#)', rest)


def test_page_and_plot_have_the_figures_that_were_measured() -> None:
    found = runs.read()
    assert page.PAGE.read_text() == page.page(found), "python -m benchmarks.recovery.page"
    assert plot.PICTURE.read_text() == plot.draw(found), "python -m benchmarks.recovery.page"


RECORDED = {
    "restart": ("as round 1: rank 1, Signal: killed by SIGKILL", "Succeeded"),
    "dev": ("KeyError: 'rate'", "as revision 3"),
}


@pytest.mark.parametrize("recorded", session.SESSIONS, ids=lambda recorded: recorded.name)
def test_a_recorded_run_went_on_after_what_befell_it(recorded: session.Session) -> None:
    root = ElementTree.parse(recorded.picture).getroot()
    shown = "".join(root.itertext()).replace("\xa0", " ")
    for text in (*RECORDED[recorded.name], f"$ {recorded.command}"):
        assert text in shown
