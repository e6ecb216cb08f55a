"""Somebody at a terminal, with a folder and a kubeconfig, and what the pages show him."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.terminal import Ended, Terminal, ddpjob, environment
from tests.transcripts import Step, missing, sessions


class Hands:
    """Somebody with a folder, a kubeconfig and the command line."""

    def __init__(self, folder: Path, cluster: KindCluster, namespace: str) -> None:
        self.folder, self.namespace = folder, namespace
        self.kubeconfig = _kubeconfig(cluster, namespace, folder.with_name(f"{folder.name}.config"))
        self.env: Mapping[str, str] = environment(self.kubeconfig)

    def do(self, *words: str, seconds: float = 240) -> Ended:
        """Run the command in the folder and the namespace."""
        return ddpjob(*words, env=self.env, cwd=self.folder, seconds=seconds)

    def read(self, page: str, name: str, replaced: Mapping[str, str], *, until: str = "") -> None:
        """Run the sessions of this name of a page, and compare what is printed with what it shows.

        `replaced` are texts of this cluster and what the page has instead. A command that the page
        ends by Ctrl-C runs in a terminal, and is ended so once it has printed `until`.
        """
        found = [found for found in sessions(ROOT / page) if found.name == name]
        assert found, f"{page} has no session {name}"
        for session in found:
            for step in session.steps:
                printed = self._printed(step, until)
                # The longest first: a node's name may begin with another's.
                for old, new in sorted(replaced.items(), key=lambda pair: -len(pair[0])):
                    printed = printed.replace(old, new)
                line = missing(step.shown, printed.splitlines())
                assert line is None, f"{session}: {line!r} is not in\n{printed}"

    def _printed(self, step: Step, until: str) -> str:
        command, *words = shlex.split(step.command)
        assert command == "ddpjob", step.command
        if "^C" not in step.shown:
            return ddpjob(*words, env=self.env, cwd=self.folder, seconds=240, merged=True).out
        with Terminal(*words, env=self.env, cwd=self.folder) as terminal:
            terminal.until(until)
            terminal.type("\x03")
            return terminal.end().out


def _kubeconfig(cluster: KindCluster, namespace: str, path: Path) -> Path:
    """Write a kubeconfig whose context has this namespace."""
    path.write_text(cluster.kubeconfig.read_text())
    path.chmod(0o600)
    cluster.kubectl(
        *("config", "set-context", "--current", "--namespace", namespace),
        *("--kubeconfig", os.fspath(path)),
    )
    return path
