"""docs/training.md has every variable that a job's processes get, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob.api import DDPJob
from ddpjob.api.podtypes import is_reserved
from tests.builders import job, made_pod, trainer
from tests.cluster.tiers import ROOT

SECTION = (ROOT / "docs" / "training.md").read_text().split("## Your own script\n")[1]
SOURCES = (ROOT / "operator" / "ddpjob" / "pods", ROOT / "operator" / "ddpjob_agent")
NAME = re.compile(r"DDPJOB_[A-Z0-9_]+")
# The launcher's alone: the ranks do not get it. And one that only tests of the agent set.
NOT_THERE = {"DDPJOB_LAUNCHER", "DDPJOB_RENDEZVOUS_SECONDS"}
EVERYTHING = {
    "resources": {"limits": {"cpu": 4}},
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "ckpt"}}},
    "data": {"volume": {"persistentVolumeClaim": {"claimName": "digits"}}},
    "code": {"configMaps": ["ddpjob-code-3fa9c1d20b7e"], "sha256": "0" * 64},
    "hangTimeoutSeconds": 600,
    "successPolicy": "Rank0",
    "elastic": {"minNodes": 1},
}


def in_sources() -> Iterator[str]:
    """Names of our variables that stand in what renders pods, and in the agent."""
    files: list[Path] = [path for folder in SOURCES for path in folder.rglob("*.py")]
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Constant) and NAME.fullmatch(text := str(node.value)):
            yield text
    for template in SOURCES[0].rglob("*.j2"):
        yield from NAME.findall(template.read_text())


def in_pod(job: DDPJob) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in trainer(made_pod(job))["env"]}


def test_the_page_has_every_variable_of_ours_and_no_other() -> None:
    assert set(NAME.findall(SECTION)) == set(in_sources()) - NOT_THERE


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["plain", "everything"])
def test_the_page_has_all_that_a_pod_is_made_with(spec: dict[str, Any]) -> None:
    found = {name for name in in_pod(job(**spec)) if not name.startswith("PET_")}
    assert found <= set(re.findall(r"`([A-Z0-9_]+)(?:=[^`]*)?`", SECTION))
    assert len(found) > 20


def test_the_values_on_the_page_are_those_of_the_pod() -> None:
    shown = dict(re.findall(r"`([A-Z_]+)=([^`]+)`", SECTION))
    variables = in_pod(job())
    assert shown and {name: variables[name] for name in shown} == shown
    assert not any(is_reserved(name) for name in shown), "env may set them"
