"""docs/convert.md: its example is what the command prints."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpjob.cli import app
from tests.cluster.tiers import ROOT

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
