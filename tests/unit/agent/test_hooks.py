"""The hooks' bytecode, which the agent lays down once for all processes of the pod."""

import os
from pathlib import Path

import pytest

from tests.agentpod import Pods
from tests.unit.agent.scripts import start

TELL = "print([sys.modules['sitecustomize'].__file__, sys.path])\n"
CHILD = """
child = [sys.executable, "-v", "-c", "raise ValueError('boom')"]
print(subprocess.run(child, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True).stdout)
"""


@pytest.fixture
def run(pods: Pods) -> Path:
    """The run folder of the first pod."""
    folder = pods.root / "pod-0/run"
    folder.mkdir(parents=True)
    return folder


def records(run: Path) -> int:
    return len(list(run.glob("error-*.json")))


def test_no_process_compiles_its_hooks(pods: Pods, run: Path) -> None:
    pod = start(pods, CHILD, PYTHONDONTWRITEBYTECODE="1")  # so nobody else has
    assert pod.wait() == 0 and records(run) == 1
    for name in ("sitecustomize", "ddpjob_ends"):
        (loaded,) = (
            line
            for line in pod.log.splitlines()
            if f"code object from '{run}" in line and f"{name}." in line
        )
        assert "/hooks/__pycache__/" in loaded and loaded.endswith(".pyc'"), loaded
    assert "import 'zlib'" not in pod.log, "nothing is unpacked from the zip"


def test_the_hooks_run_once(pods: Pods, run: Path) -> None:
    """Those in the agent's own folder are no `sitecustomize` of the image."""
    pod = start(pods, TELL)
    assert pod.wait() == 0
    assert f"['{run}/hooks/sitecustomize.py', " in pod.log


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_an_earlier_run_left_in_their_place_is_not_used(
    pods: Pods, run: Path, kind: str
) -> None:
    theirs = pods.root / "theirs" if kind == "link" else run / "hooks"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nos._exit(9)")
    if kind == "link":
        os.symlink(theirs, run / "hooks")
    pod = start(pods, CHILD)
    assert pod.wait() == 0 and records(run) == 1, pod.log
    assert kind != "link" or len(list(theirs.iterdir())) == 1
