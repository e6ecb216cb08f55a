"""Images that were built before (`make images`) brought to where a kind cluster pulls them from."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.tiers import Unavailable

TOOLS = ("docker", "podman", "buildah")
# How to make an image that `make images` does not.
BUILT_BY = {
    "ddpjob-test/foreign": "`make images`, then `tests/e2e/foreign/build`",
    "ddpjob-test/training-operator": "`make peer-image`",
}
PUSH_SECONDS = 900  # s; 80 s for 2.7 GB of torch the first time, seconds afterwards


class Images:
    """Where images come from and go to. A pod uses the name under which the image was built.

    With `KIND_REGISTRY` and `KIND_REGISTRY_ENDPOINT` they are pushed to that registry, in which the
    nodes look first, for any name; without, they are loaded into the nodes.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._registry = os.environ.get("KIND_REGISTRY", "")
        self._endpoint = os.environ.get("KIND_REGISTRY_ENDPOINT", "")
        self._loaded: set[str] = set()

    def containerd_patches(self) -> list[str]:
        """For the kind configuration: look in the registry first, if there is one.

        Nodes then keep no packed layers beside the unpacked ones: 3 of 9 GB for each.
        """
        if not (self._registry and self._endpoint):
            return []
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return [f"[{cri}.containerd]\n  discard_unpacked_layers = true\n"] + [
            f'[{cri}.registry.mirrors."{name}"]\n  endpoint = ["{self._endpoint}"]\n'
            for name in ("*", self._registry)
        ]

    def load(self, name: str) -> bool:
        """Bring an image to the nodes' reach, once; whether they have yet to pull it.

        Raises Unavailable where no tool has such an image.
        """
        if name in self._loaded:
            return False
        self._loaded.add(name)
        tool = self._tool_with(name)
        if self._registry and self._endpoint:
            self._push(tool, name)
            return True
        self._load(tool, name)
        return False

    def _tool_with(self, name: str) -> str:
        wanted = os.environ.get("CONTAINER_TOOL")
        for tool in (wanted,) if wanted else TOOLS:
            if shutil.which(tool) and _succeeds(tool, "inspect", "--type", "image", name):
                return tool
        raise Unavailable(
            f"no image {name} in {wanted or ', '.join(TOOLS)}",
            remedy=f"build it: {BUILT_BY.get(name.partition(':')[0], '`make images`')}",
        )

    def _push(self, tool: str, name: str) -> None:
        target = f"{self._registry}/{name}"
        if Path(tool).name == "docker":
            _run(tool, "tag", name, target)
            _run(tool, "push", "--quiet", target)
        else:  # a local registry speaks plain HTTP; zstd is quicker than gzip in both directions
            plain = ("push", "--quiet", "--tls-verify=false", "--compression-format=zstd")
            _run(tool, *plain, name, f"docker://{target}")

    def _load(self, tool: str, name: str) -> None:
        if Path(tool).name == "docker":
            _run("kind", "load", "docker-image", name, "--name", self._cluster)
            return
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/image.tar"
            _run(tool, "push", "--quiet", name, f"docker-archive:{archive}:{name}")
            _run("kind", "load", "image-archive", archive, "--name", self._cluster)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, timeout=200).returncode == 0


def _run(*command: str) -> None:
    """Raises RuntimeError with what the command complained of."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PUSH_SECONDS)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()[-2000:]}")
