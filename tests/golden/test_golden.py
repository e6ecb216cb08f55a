"""What each example becomes, whole and readable; a change of the renders shows in review.

UPDATE_GOLDEN=1 make test TIERS=golden    writes the files anew
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob.api import DDPJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import UID
from tests.cluster.tiers import ROOT

HERE = Path(__file__).parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
AGENT = render.Agent(b"the agent")


def rendered(path: Path) -> list[dict[str, Any]]:
    body = yaml.safe_load(path.read_text())
    body["metadata"] |= {"namespace": "default", "uid": UID}
    job = DDPJob.parse(body)
    pods = render.pods(job, AGENT, Policy())
    last = json.loads(pods.body(job.spec.nnodes - 1))
    return [render.service(job), render.config_map(job, AGENT), json.loads(pods.body(0)), last]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_examples_render_as_reviewed(example: Path) -> None:
    text = yaml.safe_dump_all(rendered(example), sort_keys=False, width=100)
    golden = HERE / f"{example.stem}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert golden.exists(), "UPDATE_GOLDEN=1 writes it"
    assert text == golden.read_text()


def test_every_golden_file_has_its_example() -> None:
    assert {p.stem for p in HERE.glob("*.yaml")} == {p.stem for p in EXAMPLES}
