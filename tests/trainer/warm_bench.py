"""Runs scripts in a warm pod and in a cold one, and makes what they print comparable."""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agentpod import Pod, Pods, python_path

LAUNCHER = Path(__file__).with_name("warm_launcher.py")
COMMAND = ("python", "--", "python3", "-u", "-m", "accelerate.commands.launch")
SECONDS = 900.0  # for all cases; a machine may have others to serve
# What a record of the hooks has of the moment and of the process.
OF_THE_PROCESS = ("pid", "time")


@dataclass(frozen=True)
class Case:
    """A command of Python's, and the files that it finds."""

    script: str = ""
    """The text of script.py."""
    words: tuple[str, ...] = ("script.py",)
    options: tuple[str, ...] = ("-u",)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    """Changes to the environment; @PYTHONPATH stands for what it would be."""
    cold: str = ""
    """Why the warm pod starts it cold, too: words of the line in its log."""
    code: int = 0
    told: str = ""
    """Words that it prints: without them both could be equally wrong."""

    def lay(self, folder: Path) -> None:
        """Write its files."""
        folder.mkdir(parents=True)
        for name, text in {"script.py": self.script, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = textwrap.dedent(text).lstrip("\n").encode() if isinstance(text, str) else text
            path.write_bytes(content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


@dataclass(frozen=True)
class Ended:
    """How a case ended in one pod."""

    is_cold: bool
    said: str
    """What the agent said of its start."""
    code: int
    output: str
    records: list[dict[str, Any]]
    """What the hooks have written for the termination message."""


def plain(text: str, pod: Pod, pids: Mapping[int, str]) -> str:
    """A text without what two pods cannot have in common: folder, address, pids, places."""
    text = text.replace(str(pod.folder), "POD").replace(pod.address, "ADDRESS")
    for pid, name in pids.items():
        text = re.sub(rf"\b{pid}\b", name, text)
    return re.sub(r"0x[0-9a-f]{6,}", "0xPLACE", text)


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of the hooks, in a stable order."""
    found = [json.loads(path.read_text()) for path in folder.glob("e*-*.json")]
    for record in found:
        for name in OF_THE_PROCESS:
            record.pop(name, None)
    return sorted(found, key=repr)


class Bench:
    """Two pods, a warm and a cold one, that run the same cases side by side."""

    def __init__(self, pods: Pods, cases: Mapping[str, Case]) -> None:
        self.cases = cases
        self.pods = {kind: self.start(pods, kind) for kind in ("warm", "cold")}
        self.ended: dict[str, dict[str, Ended]] = {kind: {} for kind in self.pods}

    def start(self, pods: Pods, kind: str) -> Pod:
        """Lay down the cases of a pod, and start it."""
        folder = pods.root / f"pod-{len(pods.started)}"
        package = folder / "accelerate" / "commands"
        package.mkdir(parents=True)
        for path in (package, package.parent):
            (path / "__init__.py").touch()
        (package / "launch.py").write_text(LAUNCHER.read_text())
        for name, case in self.cases.items():
            case.lay(folder / "cases" / name)
        listed = [
            {
                "name": name,
                "words": case.words,
                "options": case.options,
                "cwd": case.cwd,
                "env": dict(case.env),
            }
            for name, case in self.cases.items()
        ]
        (folder / "cases.json").write_text(json.dumps(listed))
        changes = {"DDPJOB_WARM_START": "0" if kind == "cold" else "1"}
        return pods.start(
            *COMMAND, changes={**changes, "PATH": python_path(), "PYTHONUNBUFFERED": "1"}
        )

    def collect(self) -> None:
        """Wait for both pods, and read how each case ended."""
        for kind, pod in self.pods.items():
            assert pod.process.wait(SECONDS) == 0, pod.log
            results = json.loads((pod.folder / "results.json").read_text())
            for name, result in results.items():
                folder = pod.folder / "cases" / name
                output = (folder / "output").read_text(errors="backslashreplace")
                pids = {result["pid"]: "PID"}
                texts = json.dumps(records(folder / "run"))
                self.ended[kind][name] = Ended(
                    result["is_cold"],
                    plain(result["said"], pod, pids),
                    result["code"],
                    plain(output, pod, pids),
                    json.loads(plain(texts, pod, pids)),
                )
