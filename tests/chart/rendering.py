"""Renders the chart as Helm does, and reads the result strictly."""

import subprocess
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ddpjob.json_depth import Body

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "ddpjob"
KUBE_VERSION = "1.34.4"  # that of the Makefile


class StrictLoader(yaml.CSafeLoader):
    """Refuses a key that is given twice, as the API server's strict field validation does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"given twice: {twice}{node.start_mark}"
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[Body]:
    """The objects in a YAML stream."""
    return [document for document in yaml.load_all(text, StrictLoader) if document]


@dataclass(frozen=True)
class Helm:
    """A helm program, and the chart."""

    program: Path
    chart: Path = CHART

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, timeout=200
        )

    def template(
        self, *arguments: str, release: str = "ddpjob", namespace: str = "ddpjob-system"
    ) -> str:
        """What `helm template` prints for the chart; fails the test if it refuses."""
        done = self.refused_or_rendered(*arguments, release=release, namespace=namespace)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused_or_rendered(
        self, *arguments: str, release: str = "ddpjob", namespace: str = "ddpjob-system"
    ) -> subprocess.CompletedProcess[str]:
        fixed = ["template", release, str(self.chart), "--namespace", namespace]
        return self.run(*fixed, "--kube-version", KUBE_VERSION, *arguments)

    @cache  # noqa: B019 - one Helm lives as long as the session
    def objects(self, *arguments: str, **where: str) -> list[Body]:
        """The objects that the chart renders to; shared between tests, so not to be changed."""
        return documents(self.template("--no-hooks", *arguments, **where))


def only(objects: list[Body], kind: str) -> Body:
    """The one object of that kind."""
    found = list(of_kind(objects, kind))
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def of_kind(objects: list[Body], kind: str) -> Iterator[Body]:
    return (found for found in objects if found["kind"] == kind)


def operator_container(objects: list[Body]) -> Body:
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert len(pod["containers"]) == 1
    container: Body = pod["containers"][0]
    return container
