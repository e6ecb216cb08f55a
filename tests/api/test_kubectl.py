"""ddpjob as a plugin of a real kubectl."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.reading import Cluster
from tests.cluster import binaries
from tests.cluster.tiers import ROOT
from tests.terminal import environment

# The console scripts, as an installer would write them.
SCRIPTS = {
    "kubectl-ddpjob": "from ddpjob.cli import main; main()",
    "kubectl_complete-ddpjob": "from ddpjob.cli.completion import complete; complete()",
}


@pytest.fixture
def env(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has the plugin on her PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, program in SCRIPTS.items():
        (folder / name).write_text(f"#!{sys.executable}\n{program}\n")
        (folder / name).chmod(0o755)
    path = tmp_path / "kubeconfig"
    cluster.server.write_kubeconfig(path, token=cluster.server.token, namespace=cluster.namespace)
    found = environment(path)
    return {**found, "PATH": f"{folder}:{found['PATH']}", "PYTHONPATH": str(ROOT / "operator")}


def kubectl(env: dict[str, str], *words: str) -> list[str]:
    """The lines that kubectl prints."""
    ended = subprocess.run(
        [str(binaries.control_plane()["kubectl"]), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return ended.stdout.splitlines()


def test_kubectl_runs_and_completes_the_plugin(cluster: Cluster, env: dict[str, str]) -> None:
    for name in ("llama", "llava", "bert"):
        cluster.job(name)
    assert sorted(kubectl(env, "ddpjob", "get", "-o", "name")) == [
        f"ddpjob.ddpjob.dev/{name}" for name in ("bert", "llama", "llava")
    ]
    assert kubectl(env, "__complete", "ddpjob", "sus") == ["suspend", ":0"]
    assert kubectl(env, "__complete", "ddpjob", "get", "--sta") == ["--state", ":0"]
    *found, directive = kubectl(env, "__complete", "ddpjob", "logs", "ll")
    assert (sorted(found), directive) == (["llama", "llava"], ":0")
    assert kubectl(env, "__complete", "ddpjob", "logs", "x") == [":0"]
