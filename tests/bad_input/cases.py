"""The broken job files of this folder, each with what its message must say."""

from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One file, one fault. index.yaml explains the fields."""

    name: str
    path: str
    rule: str
    value: str = ""
    api_path: str | None = None
    api: str | None = None
    refused_by: str = "both"
    reason: str = ""

    @property
    def file(self) -> Path:
        """The broken file."""
        return FOLDER / f"{self.name}.yaml"

    @property
    def api_words(self) -> tuple[str, str]:
        """Field and rule as the answer to `kubectl apply` names them."""
        path = self.path if self.api_path is None else self.api_path
        return path, self.rule if self.api is None else self.api


def cases() -> list[Case]:
    """All of them, in the order of the index."""
    index = yaml.safe_load((FOLDER / "index.yaml").read_text(encoding="utf-8"))
    return [Case(name, **entry) for name, entry in index.items()]
