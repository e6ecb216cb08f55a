"""The Go programs that the tests start, built once from the modules beside this file into a cache.

`python -m tests.cluster.binaries` builds all of them ahead of a test run; arguments pick some
(kubernetes, etcd, helm), what only `make test-all` needs (SELDOM), or a benchmark
(training-operator).
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.tiers import Unavailable, cache_folder

HERE = Path(__file__).resolve().parent
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
BUILD_SECONDS = 1800  # s; 4 min for Kubernetes on 2 cores, with an empty Go build cache

may_build = True
"""Whether `build` may take minutes; without, it finds what has been built before."""


@dataclass(frozen=True)
class Module:
    """A Go module beside this file: what of it is built, and under which names."""

    folder: str
    package: str
    programs: tuple[str, ...]
    versioned: str = ""  # the requirement in go.mod whose version is the program's
    version_variables: tuple[str, ...] = ()

    def source(self) -> Path:
        return HERE / self.folder

    def digest(self) -> str:
        """Hash of all that decides what comes out, except for the Go release."""
        digest = hashlib.sha256(f"{self} {sys.platform} {platform.machine()}".encode())
        for path in sorted(self.source().iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def linker_flags(self) -> str:
        """Without the version stamped in, clients see v0.0.0 and refuse features."""
        flags = ["-s", "-w"]
        if self.versioned:
            pattern = rf"^\s*(?:require )?{re.escape(self.versioned)} v((\d+)\.(\d+)\S*)"
            found = re.search(pattern, (self.source() / "go.mod").read_text(), re.MULTILINE)
            assert found, f"{self.folder}/go.mod does not require {self.versioned}"
            values = {"ersion": f"v{found[1]}", "ajor": found[2], "inor": found[3]}
            for variable in self.version_variables:
                value = next(v for suffix, v in values.items() if variable.endswith(suffix))
                flags += ["-X", f"{variable}={value}"]
        return " ".join(flags)


_VERSIONS = tuple(
    f"k8s.io/{package}.{name}"
    for package in ("component-base/version", "client-go/pkg/version")
    for name in ("gitVersion", "gitMajor", "gitMinor")
)
MODULES = {
    module.folder: module
    for module in (
        Module("etcd", "go.etcd.io/etcd/server/v3", ("etcd",)),
        Module(
            "kubernetes",
            ".",
            CONTROL_PLANE[1:],
            "k8s.io/kubernetes",
            _VERSIONS,
        ),
        Module(
            "helm",
            "helm.sh/helm/v3/cmd/helm",
            ("helm",),
            "helm.sh/helm/v3",
            ("helm.sh/helm/v3/internal/version.version",),
        ),
    )
}

# For `make queues` and `make test-all`: Kubernetes with its gangs, two more schedulers, and Kueue.
QUEUES = {
    module.folder: module
    for module in (
        Module("kubernetes-gangs", ".", CONTROL_PLANE[1:], "k8s.io/kubernetes", _VERSIONS),
        Module("volcano", "volcano.sh/volcano/cmd/scheduler", ("volcano-scheduler",)),
        Module(
            "coscheduling",
            "sigs.k8s.io/scheduler-plugins/cmd/scheduler",
            ("scheduler-plugins-scheduler",),
        ),
        Module("kueue", "sigs.k8s.io/kueue/cmd/kueue", ("kueue",)),
    )
}

# For `make test-all`.
PROMTOOL = Module("prometheus", "github.com/prometheus/prometheus/cmd/promtool", ("promtool",))
PROMETHEUS = Module(
    "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", ("prometheus",)
)
KUBE_STATE_METRICS = Module(
    "kube-state-metrics", "k8s.io/kube-state-metrics/v2", ("kube-state-metrics",)
)
SELDOM = {
    **QUEUES,
    "promtool": PROMTOOL,
    "prometheus": PROMETHEUS,
    "kube-state-metrics": KUBE_STATE_METRICS,
}

# A peer, for `make bench-recovery`.
TRAINING_OPERATOR = Module(
    "training-operator",
    "github.com/kubeflow/training-operator/cmd/training-operator.v1",
    ("training-operator",),
)
_ALL = {**MODULES, **SELDOM, TRAINING_OPERATOR.folder: TRAINING_OPERATOR}


def control_plane() -> dict[str, Path]:
    """Paths of etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl.

    From the folder `KUBEBUILDER_ASSETS` (the convention of envtest) where that is set, else built.
    Raises Unavailable where neither can be.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        paths = {name: Path(assets) / name for name in CONTROL_PLANE}
        if lacking := [name for name, path in paths.items() if not os.access(path, os.X_OK)]:
            raise Unavailable(
                f"KUBEBUILDER_ASSETS={assets} has no {', '.join(lacking)}",
                remedy="put them there (envtest's archive lacks controller-manager and scheduler),"
                " or unset it and have Go, to build all of them",
            )
        return paths
    return {**build(MODULES["etcd"]), **build(MODULES["kubernetes"])}


def kubectl() -> Path:
    """The user's own kubectl, or the one built for the control plane."""
    found = shutil.which("kubectl")
    return Path(found) if found else control_plane()["kubectl"]


def helm() -> Path:
    """The user's own helm if it is a Helm 3 or newer, or one built from its Go module."""
    if found := shutil.which("helm"):
        version = subprocess.run(
            [found, "version", "--short"], capture_output=True, text=True, timeout=30
        )
        if version.returncode == 0 and not version.stdout.startswith(("v2", "Client: v2")):
            return Path(found)
    return build(MODULES["helm"])["helm"]


def build(module: Module) -> dict[str, Path]:
    """Paths of the module's programs, built now unless they were before. Raises Unavailable."""
    folder = cache_folder() / "bin" / f"{module.folder}-{module.digest()}"
    with _lock(folder.parent):
        if not folder.exists() and not may_build:
            missing = f"{', '.join(module.programs)} not built yet"
            raise Unavailable(missing, remedy=f"python -m tests.cluster.binaries {module.folder}")
        if not folder.exists():
            _build(module, folder)
    return {name: folder / name for name in module.programs}


def module_folder(module: Module, required: str) -> Path:
    """Where the sources are of what a module requires. Raises Unavailable without Go."""
    said = _go(module, ["mod", "download", "-json", required], "install Go, and go online")
    return Path(json.loads(said)["Dir"])


def _go(module: Module, words: list[str], remedy: str) -> str:
    """What Go prints in the module's folder. Raises Unavailable."""
    if shutil.which("go") is None:
        raise Unavailable("Go not found", remedy=remedy)
    ended = subprocess.run(
        ["go", *words],
        cwd=module.source(),
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    if ended.returncode != 0:
        tail = " / ".join(ended.stderr.strip().splitlines()[-3:])
        raise Unavailable(f"`go {words[0]}` in {module.folder} failed: {tail}", remedy=remedy)
    return ended.stdout


def _build(module: Module, folder: Path) -> None:
    needed = re.search(r"^go (\d+\.\d+)", (module.source() / "go.mod").read_text(), re.MULTILINE)
    assert needed, f"{module.folder}/go.mod names no Go release"
    remedy = f"install Go >= {needed[1]}" + (
        ", or install helm"
        if module.folder == "helm"
        else ", or set KUBEBUILDER_ASSETS to a folder with " + ", ".join(CONTROL_PLANE)
    )
    print(
        f"building {', '.join(module.programs)} (once; minutes)",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    first, *others = module.programs
    words = ["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags"]
    words += [module.linker_flags(), "-o", str(unfinished / first), module.package]
    _go(module, words, remedy)
    for name in others:
        (unfinished / name).symlink_to(first)
    unfinished.rename(folder)
    print(f"built into {folder} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One builder at a time: others wait, and then find the work done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Build the tests' modules, or those named, and print where their programs are."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.binaries", description=main.__doc__
    )
    parser.add_argument("module", nargs="*", choices=[*_ALL, []], help="default: the tests'")
    try:
        for name in parser.parse_args().module or MODULES:
            for path in build(_ALL[name]).values():
                print(path)
    except Unavailable as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
