"""What each example becomes: four of them whole, and of the others what differs from the plain one.

UPDATE_GOLDEN=1 make test TIERS=golden    writes the files anew
"""

import json
import os
from collections.abc import Iterator
from difflib import ndiff
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
PLAIN = "digits"
WHOLE = (PLAIN, "gpu", "master", "shared-volume")
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))
# The plain example with other fields, for which no file can stand in examples/.
CODE = {"sha256": "3fa9c1d20b7e".ljust(64, "0")}
PARTS = ["ddpjob-code-3fa9c1d20b7e", "ddpjob-code-3fa9c1d20b7e-1"]
VOLUME = {"persistentVolumeClaim": {"claimName": "code"}}
PATCHES: dict[str, dict[str, Any]] = {
    "code in ConfigMaps": {"args": ["train.py"], "code": {**CODE, "configMaps": PARTS}},
    "code in a volume": {
        "args": ["train.py"],
        "code": {**CODE, "volume": VOLUME, "path": "3fa9c1d20b7e.tar.gz", "mountPath": "/work"},
    },
}
OTHERS = [*(name for name in NAMES if name not in WHOLE), *PATCHES]
DIFFERENCES = HERE / "differences.txt"
OBJECTS = ("Service", "ConfigMap", "first pod", "last pod")
HASH = "metadata.annotations.ddpjob.dev/spec-hash"  # it follows from the rest
AGENT, TOKEN = render.Agent(b"the agent"), "t" * 32
UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))


def rendered(example: str, name: str = "") -> list[dict[str, Any]]:
    """The objects of the example, under another name if there is one."""
    file = PLAIN if example in PATCHES else example
    body = yaml.safe_load((ROOT / "examples" / f"{file}.yaml").read_text())
    body["spec"] |= PATCHES.get(example, {})
    body["metadata"] |= {"namespace": "default", "uid": UID, "name": name or example}
    job = DDPJob.parse(body)
    pods = render.pods(job, AGENT, Policy())
    last = json.loads(pods.body(job.spec.nnodes - 1))
    return [
        render.service(job, TOKEN),
        render.config_map(job, AGENT),
        json.loads(pods.body(0)),
        last,
    ]


def lines(value: Any, path: str = "") -> Iterator[str]:
    """`value`, a line for each leaf, which begins with its path. Objects in lists go by name."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from lines(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for place, part in enumerate(value):
            name = part.get("mountPath") or part.get("name") or place
            yield from lines(part, f"{path}[{name}]")
    elif path != HASH:
        yield f"{path} = {json.dumps(value)}"


def differences(example: str) -> str:
    """What the example's objects have in place of the plain one's, with a title for each."""
    found: dict[str, str] = {}
    pairs = zip(rendered(PLAIN), rendered(example, PLAIN), strict=True)
    for title, (plain, other) in zip(OBJECTS, pairs, strict=True):
        compared = ndiff(list(lines(plain)), list(lines(other)))
        found[title] = "".join(f"{line}\n" for line in compared if line[0] in "+-")
    if found["first pod"] == found["last pod"]:
        found["both pods"] = found.pop("first pod")
        del found["last pod"]
    return "".join(f"{example}, {title}\n{text}" for title, text in found.items() if text)


@pytest.mark.parametrize("example", WHOLE)
def test_the_example_renders_as_reviewed(example: str) -> None:
    text = yaml.safe_dump_all(rendered(example), sort_keys=False, width=100)
    golden = HERE / f"{example}.yaml"
    if UPDATE:
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 writes it"


@pytest.mark.parametrize("example", OTHERS)
def test_the_example_differs_from_the_plain_one_as_reviewed(example: str) -> None:
    if UPDATE:
        DIFFERENCES.write_text("\n".join(map(differences, OTHERS)))
    sections = DIFFERENCES.read_text().split("\n\n")
    known = {section.partition(",")[0]: section.rstrip() + "\n" for section in sections}
    assert differences(example) == known[example], "UPDATE_GOLDEN=1 writes it"
