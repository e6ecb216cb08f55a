"""The notebook in examples/ runs from top to bottom, in a kernel of its own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")

import nbformat
from jupyter_client.manager import start_new_kernel

from benchmarks import notebook as recorder
from ddpjob.client.html import live
from ddpjob.client.snapshot import Snapshot
from tests.builders import job_object
from tests.cells import Notebook
from tests.cluster.tiers import ROOT
from tests.notebooks import assert_trained
from tests.trainer.conftest import clean_environment

SVG = "http://www.w3.org/2000/svg"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a kernel inherits: our packages, and nothing of a job's."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "images/trainer"))
    found = clean_environment(IPYTHONDIR=str(tmp_path / "ipython"), PYTHONPATH=paths)
    for name in os.environ.keys() - found.keys():
        monkeypatch.delenv(name)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    yield


@pytest.mark.deep
def test_the_notebook_trains_on_two_nodes_fails_and_goes_on(tmp_path: Path) -> None:
    notebook = nbformat.read(recorder.NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = recorder.Recorder(notebook, str(tmp_path))
    client.execute()
    assert_trained(notebook)
    assert len(client.shown) > 3, "the display has changed while the job ran"
    recorder.draw(recorder.middle(client.shown), "x")
    assert not list((tmp_path / ".ddpjob").glob(".files-*"))


def test_the_outputs_that_it_comes_with_are_those_of_a_run() -> None:
    notebook = nbformat.read(recorder.NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert_trained(notebook)
    assert "/tmp" not in recorder.NOTEBOOK.read_text()


@pytest.mark.deep
def test_the_quick_start_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/quickstart-notebook.md").read_text()
    function, launch = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    launch = launch.replace('image="REGISTRY/torch:2.9")', 'on="local")')
    result = Notebook()(function)(launch)["run"].result()
    assert result["world"] == 2 and result["loss"] < 0.1


CELL = """
from ddpjob import launch
def wait():
    import time
    print("up", flush=True)
    time.sleep(600)
run = launch(wait, on="local", spec={"launcher": "python"})
"""
STILL = """
try:
    run.wait(timeout=5)
except TimeoutError:
    print(f"it is {run.state}")
"""


@pytest.mark.deep
def test_an_interrupt_of_a_cell_detaches_and_the_job_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manager, client = start_new_kernel()
    try:
        shown: list[str] = []
        errors: list[str] = []

        def see(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "error":
                errors.append(content["evalue"])
            html = content.get("data", {}).get("text/html", "")
            shown.extend(filter(None, [html, content.get("text")]))
            if ">up<" in html and "detached" not in html and not interrupted:
                interrupted.append(True)
                manager.interrupt_kernel()

        interrupted: list[bool] = []
        client.execute_interactive(CELL, output_hook=see, timeout=200)
        assert interrupted and errors == []
        assert "runs on, as long as this program does" in shown[-1]
        client.execute_interactive(STILL, output_hook=see, timeout=200)
        assert shown[-1] == "it is Running\n"
        client.execute_interactive("run.delete()", output_hook=see, timeout=200)
        assert errors == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def shown(percent: int, step: int = 40) -> str:
    """The display of a job as a notebook has it."""
    curve = [[1, 1.0], [step, 0.25]]
    summary = {"nodes": "2/2", "step": f"{step}/100"}
    status = {"state": "Running", "summary": summary, "curve": curve, "history": [{"step": 9}]}
    status["progress"] = {"percent": percent}
    return live(
        Snapshot({**job_object("train-x"), "status": status}), ["one & two", "three"], "note"
    )


def test_the_notebooks_picture_is_that_of_its_middle_with_all_that_it_shows() -> None:
    picture = recorder.draw(recorder.middle([shown(20, 20), shown(61, 61), shown(70, 70)]), "x < y")
    root = ElementTree.fromstring(picture)
    text = "".join(root.itertext())
    for words in ("x < y", "train-x", "Running", "step 61/100", "one & two", "three", "note"):
        assert words in text
    assert root.find(f"{{{SVG}}}svg") is not None
    bars = [r for r in root.findall(f"{{{SVG}}}rect") if r.get("height") == "6"]
    assert [float(bar.get("width", "")) for bar in bars] == [480, 4.8 * 61]


@pytest.mark.parametrize("percents", [[], [20, 59], [100]])
def test_a_notebook_that_went_otherwise_is_not_drawn(percents: list[int]) -> None:
    with pytest.raises(ValueError, match="shows 60 % and a curve"):
        recorder.middle([shown(percent) for percent in percents])


def test_outputs_are_kept_without_paths_of_the_machine() -> None:
    value = [{"text": "/tmp/x1/train.py and /home/me/lib/python3/site-packages/torch/a.py"}]
    assert recorder.without_paths(value, "/tmp/x1") == [
        {"text": "…/train.py and …/site-packages/torch/a.py"}
    ]
