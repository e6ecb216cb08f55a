"""`ddpjob submit --code-claim`: an archive goes into a claim, by a real API server."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpjob.cluster import PODS
from tests.api.jobs import Jobs
from tests.api.processes import jobs as jobs  # noqa: PLC0414
from tests.cluster.apiserver import ApiServer
from tests.cluster.streaming import Kubelet
from tests.terminal import Ended, ddpjob, environment

pytestmark = pytest.mark.deep

TRAIN = """\
import os
print("weights", os.path.getsize("weights.bin"), flush=True)
"""
WORDS = ("train.py", "--name", "digits", "--image", "torch:2.9", "--code-claim", "code")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is too large for ConfigMaps; it is where commands run."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "weights.bin").write_bytes(os.urandom(5 * 2**20))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def claim(jobs: Jobs, api_server: ApiServer, tmp_path: Path) -> Path:
    """The folder that the claim `code` of the namespace is: the job's pods find it there too."""
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}
    volume = {**spec, "hostPath": {"path": "/nowhere"}, "storageClassName": ""}
    volume["claimRef"] = {"namespace": jobs.namespace, "name": "code"}
    name = f"pv-{jobs.namespace}"
    path = "/api/v1/persistentvolumes"
    api_server.request("POST", path, {"metadata": {"name": name}, "spec": volume})
    wanted = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": name,
    }
    claims = f"/api/v1/namespaces/{jobs.namespace}/persistentvolumeclaims"
    api_server.request("POST", claims, {"metadata": {"name": "code"}, "spec": wanted})
    folder = tmp_path / f"{jobs.namespace}.digits" / "volumes" / "code"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def env(jobs: Jobs, api_server: ApiServer, tmp_path: Path) -> Mapping[str, str]:
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, token=api_server.token, namespace=jobs.namespace)
    return environment(path)


async def test_a_large_folder_goes_into_the_claim_and_its_job_trains(
    jobs: Jobs,
    api_server: ApiServer,
    project: Path,
    claim: Path,
    env: Mapping[str, str],
) -> None:
    async def submit(*words: str) -> Ended:
        return await asyncio.to_thread(ddpjob, "submit", *words, env=env)

    refused = await submit(*WORDS[:-2])
    assert refused.code == 2 and "--code-claim" in refused.err
    with Kubelet(api_server, "local", paths={"/claim/": f"{claim}/"}):
        ended = await submit(*WORDS)
    assert ended.code == 0, ended.err
    assert "code      2 files, 5.0 MiB -> 5.0 MiB, claim code" in ended.err
    (kept,) = claim.iterdir()
    code = (await jobs.get())["spec"]["code"]
    assert code["volume"] == {"persistentVolumeClaim": {"claimName": "code"}}
    assert code["path"] == kept.name and kept.name.startswith("ddpjob-code-")
    assert code["sha256"] == hashlib.sha256(kept.read_bytes()).hexdigest()
    await jobs.in_state("Succeeded")
    log = claim.parents[1] / "logs" / "digits-0-0.log"
    assert f"weights {5 * 2**20}" in log.read_text()
    pods = (await jobs.client.request("GET", PODS.path(jobs.namespace)))["items"]
    assert not [pod for pod in pods if pod["metadata"]["name"].startswith("ddpjob-code-")]

    before = kept.stat().st_mtime_ns
    again = [word if word != "digits" else "second" for word in WORDS]
    with Kubelet(api_server, "local", paths={"/claim/": f"{claim}/"}):
        assert (await submit(*again)).code == 0
    assert kept.stat().st_mtime_ns == before  # it was there already


async def test_what_goes_wrong_leaves_neither_a_job_nor_a_pod(
    jobs: Jobs, api_server: ApiServer, project: Path, claim: Path, env: Mapping[str, str]
) -> None:
    claim.chmod(0o500) if os.getuid() else claim.rmdir()
    with Kubelet(api_server, "local", paths={"/claim/": f"{claim}/"}):
        ended = await asyncio.to_thread(ddpjob, "submit", *WORDS, env=env)
    assert ended.code == 5 and "error: the code is not in the claim: " in ended.err
    for path in (jobs.path, PODS.path(jobs.namespace)):
        assert (await jobs.client.request("GET", path))["items"] == []


async def test_a_dry_run_writes_nothing(
    jobs: Jobs, project: Path, claim: Path, env: Mapping[str, str]
) -> None:
    for dry in ("--dry-run", "--dry-run=server"):
        ended = await asyncio.to_thread(ddpjob, "submit", *WORDS, dry, env=env)
        assert ended.code == 0 and "claim code" in ended.err, ended.err
    assert (
        "claimName: code"
        in (await asyncio.to_thread(ddpjob, "submit", *WORDS, "--dry-run", env=env)).out
    )
    assert list(claim.iterdir()) == []
