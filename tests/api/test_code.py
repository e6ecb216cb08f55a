"""A job's own code on a real API server: ConfigMaps as they are packed, pods as processes."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS
from ddpjob.code.archive import PART_BYTES, CodeArchive, pack
from tests.api.jobs import Jobs, conditions
from tests.api.processes import jobs

__all__ = ["jobs"]  # a fixture
TRAIN = """
import os, sys
from pack import net
assert open("config.yaml").read() == "lr: 0.1" and net.SIZE == 4
assert not os.path.exists("left")
open("left", "w").close()
if os.environ["DDPJOB_ATTEMPT"] == os.environ["DDPJOB_ROUND"] == "0":
    sys.exit("not yet")
"""


def archive(folder: Path, *, size: int = 0) -> CodeArchive:
    """A project, with a file of so many bytes that gzip makes no smaller."""
    (folder / "pack").mkdir(parents=True)
    (folder / "pack/net.py").write_text("SIZE = 4\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "config.yaml").write_text("lr: 0.1")
    (folder / "weights").write_bytes(hashlib.shake_128(b"seed").digest(size))
    return pack(folder)


async def store(jobs: Jobs, code: CodeArchive, *owners: str) -> None:
    """Create the ConfigMaps, which belong to jobs."""
    references = []
    for owner in owners:
        uid = (await jobs.get(owner))["metadata"]["uid"]
        kind = {"apiVersion": names.API_VERSION, "kind": names.KIND}
        references.append({**kind, "name": owner, "uid": uid})
    for body in code.config_maps():
        body["metadata"]["ownerReferences"] = references
        await jobs.client.request("POST", CONFIGMAPS.path(jobs.namespace), body)


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
async def test_code_in_four_config_maps_runs_in_each_attempt_and_round(
    jobs: Jobs, tmp_path: Path, strategy: str
) -> None:
    code = archive(tmp_path / "project", size=4 * PART_BYTES - 8192)
    assert len(code.config_maps()) == 4 and len(code.data) > 4 * PART_BYTES - 16384
    policy = {"restartStrategy": strategy, "backoffSeconds": {"first": 0}}
    spec: dict[str, Any] = {"code": code.spec(), "failurePolicy": policy, "suspend": True}
    spec |= {"args": ["train.py"], "launcher": "python", "warmStart": {"enabled": False}}
    for number in range(20):
        await jobs.create(f"sweep-{number}", **spec)
    # All of a sweep own the same ones.
    await store(jobs, code, *(f"sweep-{number}" for number in range(20)))
    await jobs.patch("sweep-0", suspend=False)
    job = await jobs.in_state("Succeeded", "sweep-0")
    assert job["status"]["restarts"] == 1
    assert job["status"]["failure"]["message"] == "exited with code 1: not yet"
    assert (job["status"]["round"] > 0) == (strategy == "InPlace")
    assert (job["status"]["attempt"] > 0) == (strategy == "Recreate")


async def test_another_archive_fails_the_job_at_once(jobs: Jobs, tmp_path: Path) -> None:
    code = archive(tmp_path / "project")
    await jobs.create(args=["train.py"], code={**code.spec(), "sha256": "0" * 64}, nnodes=1)
    await store(jobs, code, "digits")
    job = await jobs.in_state("Failed")
    assert job["status"]["failure"]["reason"] == "CodeInvalid"
    assert f"its sha256 is {code.sha256}" in job["status"]["failure"]["message"]
    assert conditions(job)["Failed"] == ("True", "CodeInvalid") and not job["status"]["restarts"]
