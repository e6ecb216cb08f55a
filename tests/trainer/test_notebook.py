"""The notebook in examples/ runs from top to bottom, in a kernel of its own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")

import nbformat
from jupyter_client.manager import start_new_kernel

from benchmarks import notebook as recorder
from tests.cells import Notebook
from tests.cluster.tiers import ROOT
from tests.notebooks import assert_trained
from tests.trainer.conftest import clean_environment


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
