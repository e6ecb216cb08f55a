"""The chart's alerts, as promtool judges them: each fires when it should, and all is quiet."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.api.alert_cases import FIRES, cases
from tests.cluster import binaries
from tests.cluster.tiers import ROOT, skipping_where_unavailable
from tests.monitoring import ALERTS

RULES = ROOT / "charts" / "ddpjob" / "files" / "alerts.yaml"


@pytest.mark.builds("promtool")
def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    assert list(FIRES) and set(FIRES) == {alert.name for alert in ALERTS}
    with skipping_where_unavailable():
        promtool = binaries.build(binaries.PROMTOOL)["promtool"]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump(cases(str(RULES))))
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
