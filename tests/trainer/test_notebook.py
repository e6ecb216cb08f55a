"""The notebook in examples/ runs from top to bottom, in a kernel of its own."""

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")
pytest.importorskip("accelerate")

import nbclient
import nbformat

from tests.cluster.tiers import ROOT
from tests.trainer.conftest import clean_environment, master_port

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def assert_trained(notebook: nbformat.NotebookNode) -> None:
    text = printed(notebook)
    assert "after 230 steps, world size 2" in text
    accuracy = float(re.findall(r"^test accuracy (0\.\d{4})$", text, re.MULTILINE)[0])
    right = int(re.findall(r"^(\d+) of 360 are right$", text, re.MULTILINE)[0])
    assert accuracy >= 0.95
    assert right == round(accuracy * 360)  # what the processes have counted is what they saved
    assert pictures(notebook) == 2


def test_the_notebook_trains_on_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    for name, value in clean_environment(IPYTHONDIR=str(tmp_path / "ipython")).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    (launch,) = (cell for cell in notebook.cells if "num_processes=PROCESSES" in cell.source)
    launch.source = launch.source.replace("=PROCESSES", f"=PROCESSES, use_port='{master_port()}'")
    client = nbclient.NotebookClient(
        notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert_trained(notebook)


def test_the_outputs_that_it_comes_with_are_those_of_a_run() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert_trained(notebook)
