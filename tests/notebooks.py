"""What examples/notebook.ipynb has shown, wherever it ran."""

import re

import nbformat


def outputs(notebook: nbformat.NotebookNode, kind: str) -> list[str]:
    """The contents of this kind of all outputs, displays as they were last."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if kind == "text":
        return [output["text"] for output in found if output["output_type"] == "stream"]
    return [output["data"][kind] for output in found if kind in output.get("data", {})]


def assert_trained(notebook: nbformat.NotebookNode) -> None:
    text = "".join(outputs(notebook, "text"))
    accuracy = float(re.findall(r"^test accuracy (0\.\d{4}), world size 2$", text, re.MULTILINE)[0])
    assert accuracy >= 0.95
    assert "rank 1: ValueError: no such digit" in text and "Running at step " in text
    first, failed = outputs(notebook, "text/html")
    assert "Succeeded" in first and "step 1200/1200" in first and "<path" in first
    assert "epoch 100/100" in first and "Failed" in failed
    assert len(outputs(notebook, "image/png")) == 1
