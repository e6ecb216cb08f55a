"""A project of a script, a package and a YAML file, which `ddpjob dev` watches."""

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.kind import KindCluster
from tests.e2e.hands import Hands
from tests.e2e.install import Job
from tests.e2e.recovery import SCRIPT, Fault, Undo
from tests.terminal import Running

TRAIN = """
import os
from pathlib import Path

from steady import main

os.write(1, f"settings {Path('settings.yaml').read_text()}".encode())
main()
"""


class Project:
    """Trains for ever with steady.py, and says what its YAML file has."""

    def __init__(self, folder: Path, size: int = 100_000) -> None:
        """Make it, of so many bytes, which no archive makes fewer."""
        self.folder = folder
        (folder / "steady").mkdir(parents=True)
        self.put("steady/__init__.py", SCRIPT.read_text())
        self.put("train.py", TRAIN)
        (folder / "data.bin").write_bytes(random.Random(0).randbytes(size))
        self.save(0)

    def put(self, name: str, text: str) -> float:
        """Save a file as editors do, in another's place; when, as a Unix time."""
        began, path = time.time(), self.folder / name
        path.with_suffix(".tmp~").write_text(text)
        os.replace(path.with_suffix(".tmp~"), path)
        return began

    def save(self, number: int) -> float:
        """Save the YAML file with this number."""
        return self.put("settings.yaml", f"number: {number}\n")


@contextmanager
def developing(
    folder: Path, *words: str, env: Mapping[str, str], name: str = "dev"
) -> Iterator[Running]:
    """`ddpjob dev` in this folder, whose job is of this name, until the block ends."""
    command = ("dev", "train.py", "--name", name, "--nnodes", "2", *words)
    with Running(*command, env=env, cwd=folder) as running:
        running.until("first step 0 ")
        yield running


class DevJob(Job):
    """A job whose code is watched."""

    project: Project
    saves = 0

    def save(self) -> float:
        """Save a file; when, as a Unix time."""
        self.saves += 1
        return self.project.save(self.saves)


@contextmanager
def dev_job(cluster: KindCluster, namespace: str, image: str, size: int) -> Iterator[DevJob]:
    """One of two pods, with a folder of so many bytes, until the block ends."""
    with TemporaryDirectory() as name:
        job = DevJob(cluster, namespace, "dev")
        job.project = Project(Path(name) / "project", size)
        hands = Hands(job.project.folder, cluster, namespace)
        words = ("--image", image, "--memory", "1Gi", "--nproc-per-node", "1")
        with developing(job.project.folder, *words, env=hands.env, name=job.name):
            yield job
        job.delete()


def save(job: Job, _pod: str, _undo: Undo) -> float:
    """Save a file in the folder that is watched."""
    assert isinstance(job, DevJob)
    return job.save()


SAVED = Fault("a file is saved", save, "", in_place=True)
