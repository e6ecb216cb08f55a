"""The sessions of the docs that need no cluster, in a copy of the repository."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.tiers import ROOT
from tests.transcripts import missing, sessions

pytestmark = pytest.mark.deep

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LAPTOP = {
    page.name: found
    for page in PAGES
    if (found := [session for session in sessions(page) if session.name == "laptop"])
}
SECONDS = 280


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of the repository, with this environment as its .venv."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.check_output(
        ["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", LAPTOP)
def test_the_sessions_on_a_laptop_print_what_the_page_shows(page: str, checkout: Path) -> None:
    ours = os.pathsep.join(str(checkout / part) for part in ("operator", "images/trainer"))
    path = os.pathsep.join([str(checkout / ".venv/bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ours, "NO_COLOR": "1"}
    where = checkout / ".where"  # the reader's shell stays in the folder it has gone to
    where.write_text(str(checkout))
    for session, step in [(one, step) for one in LAPTOP[page] for step in one.steps]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"trap 'pwd > {where}' EXIT\n{step.command}"],
            cwd=where.read_text().strip(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{session}: $ {step.command}\n{done.stdout}"
        line = missing(step.shown, done.stdout.splitlines())
        assert line is None, f"{session}: $ {step.command}\n{line!r} is not in\n{done.stdout}"
