"""Scripts that the agent runs in a pod of its own, and what they can call."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.agentpod import Pod, Pods

REPORT = """
    def report(**r):
        path = os.environ["DDPJOB_PROGRESS_FILE"]
        open(path + ".tmp", "w").write(json.dumps(r))
        os.replace(path + ".tmp", path)
"""


def script(pods: Pods, text: str) -> str:
    """Path of a script; it can call report(step=…) to write the progress file."""
    path = pods.root / f"script-{len(pods.started)}.py"
    head = "import json, os, signal, subprocess, sys, time\n" + textwrap.dedent(REPORT)
    path.write_text(head + textwrap.dedent(text))
    return str(path)


def start(pods: Pods, text: str, *, rank: int = 0, nnodes: int = 1, **more: str | None) -> Pod:
    """The agent in a pod, with this script as its command."""
    command = ["command", "--", sys.executable, script(pods, text)]
    return pods.start(*command, rank=rank, nnodes=nnodes, changes=more)


STEP = """
from torch.optim import optimizer
sgd = object()
def step(times=1):
    for _ in range(times):
        for hook in optimizer.hooks:
            hook(sgd, (), {})
"""


def fake_optimizers(pods: Pods) -> str:
    """A folder for PYTHONPATH with a module that keeps its hooks as torch's optimizers do."""
    text = "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
    return fake_torch(pods.root / "site", "optim/optimizer", text)


def fake_torch(root: Path, module: str, text: str) -> str:
    """A folder for PYTHONPATH with a module of torch's, such as `distributed/run`, and no other."""
    path = root / "torch" / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in (path.parent, path.parents[1]):
        (package / "__init__.py").touch()
    path.write_text(text)
    return str(root)


def interpreter(version: str) -> str | None:
    """A Python of this version, if this machine has one: on the PATH, or by pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *root.glob(f"versions/{version}.*/bin/python")]
    for python in map(str, filter(None, found)):
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


def kept(pod: Pod) -> list[str]:
    """The files of a pod's run folder that are not the agent's own."""
    names = {path.name for path in (pod.folder / "run").iterdir()}
    return sorted(names - {"hooks", "callback-token"})
