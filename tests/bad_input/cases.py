"""Broken jobs, each with what its message must say."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from ddpjob.json_depth import Body, merged
from tests.builders import job_object

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One job, one fault. cases.yaml explains the fields."""

    name: str
    path: str
    rule: str
    value: str = ""
    patch: Body | None = None
    api_path: str | None = None
    api: str | None = None
    refused_by: str = "both"
    reason: str = ""

    def file(self, folder: Path) -> Path:
        """The broken job: a file beside this one, or one that is written into `folder`."""
        if self.patch is None:
            return FOLDER / f"{self.name}.yaml"
        path = folder / f"{self.name}.yaml"
        path.write_text(json.dumps(merged(job_object(self.name), self.patch), indent=1))
        return path

    @property
    def api_words(self) -> tuple[str, str]:
        """Field and rule as the answer to `kubectl apply` names them."""
        path = self.path if self.api_path is None else self.api_path
        return path, self.rule if self.api is None else self.api


def cases() -> list[Case]:
    """All of them, in the order of the table."""
    table = yaml.safe_load((FOLDER / "cases.yaml").read_text(encoding="utf-8"))
    return [Case(name, **entry) for name, entry in table.items()]
