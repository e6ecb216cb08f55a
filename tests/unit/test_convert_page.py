"""docs/convert.md: its example is what the command prints, and its table can be written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpjob.cli import app
from ddpjob.client.documents import to_yaml
from tests import convert_table
from tests.cluster.tiers import ROOT
from tests.foreign import pytorch_job, runtime, train_job

PAGE = ROOT / "docs" / "convert.md"


def test_the_example_becomes_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text()
    before = re.search(r"```yaml\n(apiVersion: kubeflow.*?)```", text, re.DOTALL)
    after = re.search(r"```\n\$ ddpjob convert bert.yaml\n(.*?)```", text, re.DOTALL)
    assert before and after
    monkeypatch.chdir(tmp_path)
    Path("bert.yaml").write_text(before[1])
    ended = CliRunner().invoke(app, ["convert", "bert.yaml"])
    assert ended.stderr + ended.stdout == after[1]
    Path("ddpjob.yaml").write_text(ended.stdout)
    assert CliRunner().invoke(app, ["validate", "ddpjob.yaml"]).exit_code == 0


def test_the_page_has_a_table_of_all_examples() -> None:
    place = convert_table.PLACE.search(PAGE.read_text())
    assert place
    table = place[0]
    for name in ("cpu-demo/demo.yaml", "elastic/echo/echo.yaml", "01-multi-node.yaml"):
        assert f"{name} |" in table
    assert table.count("succeeds with") >= 13 and "exit code" not in table


def test_the_table_of_a_checkout_is_written_into_a_page(tmp_path: Path) -> None:
    files = {
        "examples/a.yaml": pytorch_job(runPolicy={"schedulingPolicy": {"queue": "a|b"}}),
        "examples/b.yaml": pytorch_job(worker={"replicas": -1}),
        "examples/c.yaml": train_job("own"),
        "examples/d.yaml": {"kind": "TFJob"},
        "manifests/base/runtimes/own.yaml": runtime(),
    }
    for name, body in files.items():
        file = tmp_path / "trainer" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_yaml(body))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- convert: examples -->\n\nold\n\n<!-- end -->\nb\n")
    words = ["tests.convert_table", str(tmp_path / "trainer"), "--write", str(page)]
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env={"PYTHONPATH": f"{ROOT}/operator"})
    text = page.read_text()
    assert "old" not in text and text.startswith("a\n") and text.endswith("b\n")
    assert "| trainer: examples/a.yaml | torchrun, 3 × 1 |" in text
    assert "`queue` 'a\\|b': ddpjob has no queues" in text
    assert "| trainer: examples/b.yaml | refused: spec.pytorchReplicaSpecs.Worker.replicas" in text
    assert "| trainer: examples/c.yaml | refused: spec.runtimeRef.name" in text
    assert "| trainer: a job of runtime own | torchrun, 2 × 1 |" in text
    assert "d.yaml" not in text
