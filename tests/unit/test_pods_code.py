"""What pods have for a job's own code."""

from typing import Any

import pytest

from ddpjob import names
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from tests.builders import job, made_pod, trainer

SUM = "3fa9c1d20b7e" + "0" * 52
PARTS = {"configMaps": ["ddpjob-code-3fa9c1d20b7e", "ddpjob-code-3fa9c1d20b7e-1"], "sha256": SUM}
CLAIM = {"persistentVolumeClaim": {"claimName": "nfs"}}
FILE = {"volume": CLAIM, "path": "code/3fa9.tar.gz", "sha256": SUM}


def pod(rank: int = 0, policy: Policy | None = None, **spec: Any) -> Body:
    return made_pod(job(**spec), rank, policy)


def mounts(body: Body) -> dict[str, Body]:
    return {mount["mountPath"]: mount for mount in trainer(body)["volumeMounts"]}


def volumes(body: Body) -> dict[str, Body]:
    return {volume.pop("name"): volume for volume in body["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({"checkpoint": {"volume": CLAIM}}, "ddpjob-checkpoint"),
        ({"data": {"volume": CLAIM}}, "ddpjob-data"),
        ({"volumes": [{"name": "shared", **CLAIM}]}, "shared"),
    ],
)
def test_a_claim_of_another_volume_is_mounted_once_more(others: Body, name: str) -> None:
    body = pod(code=FILE, **others)
    mount = {"name": name, "mountPath": "/ddpjob/code", "readOnly": True}
    assert mounts(body)["/ddpjob/code"] == mount
    assert [v for v in volumes(body).values() if "persistentVolumeClaim" in v] == [CLAIM]


def test_a_pod_that_does_not_mount_the_checkpoint_has_the_claim_for_its_code() -> None:
    checkpoint = {"volume": CLAIM, "mountOn": "Rank0"}
    body = pod(1, code=FILE, checkpoint=checkpoint)
    assert mounts(body)["/ddpjob/code"]["name"] == "ddpjob-code"
    assert volumes(body)["ddpjob-code"] == CLAIM


def test_another_claim_and_another_kind_are_volumes_of_their_own() -> None:
    other: Body = {"persistentVolumeClaim": {"claimName": "other"}}
    image: Body = {"image": {"reference": "registry.example.com/code:1"}}
    sources: list[Body] = [other, image, {"emptyDir": {}}]
    for source in sources:
        body = pod(code={**FILE, "volume": source}, checkpoint={"volume": CLAIM})
        assert volumes(body)["ddpjob-code"] == source


def test_the_allow_list_names_the_field() -> None:
    with pytest.raises(InvalidJob) as error:
        pod(code={**FILE, "volume": {"hostPath": {"path": "/"}}})
    assert error.value.path == "spec.code.volume"
    kinds = [kind for kind in Policy().volume_types if kind != "configMap"]
    strict = Policy.model_validate({"volumeTypes": kinds})
    with pytest.raises(InvalidJob) as error:
        pod(policy=strict, code=PARTS, launcher="torchrun")
    assert "configMap" in error.value.rule


def below(path: str) -> list[Body]:
    """Overlays that mount a volume there."""
    mount = {"name": "trainer", "volumeMounts": [{"name": "v", "mountPath": path}]}
    spec = {"containers": [mount], "volumes": [{"name": "v", **CLAIM}]}
    return [{"template": {"spec": spec}}, {"master": {"template": {"spec": spec}}}]


@pytest.mark.parametrize(
    "path", ["/src/data", "/src//data", "/./src/a/b", "src/data", "/x/../src/y"]
)
def test_no_overlay_mounts_a_volume_where_it_would_be_emptied(path: str) -> None:
    for overlay in below(path):
        with pytest.raises(InvalidJob, match="lies in spec.code.mountPath, which is emptied"):
            pod(code=PARTS, **overlay)
        assert pod(**overlay)


ARCHIVE = f"{names.ARCHIVE_DIR}/{PARTS['configMaps'][0]}"


@pytest.mark.parametrize("path", ["/src", "/src/", "//src", ARCHIVE])
def test_no_overlay_mounts_another_volume_over_the_code_or_its_archive(path: str) -> None:
    for overlay in below(path):
        with pytest.raises(InvalidJob, match="is set by ddpjob"):
            pod(code=PARTS, **overlay)


@pytest.mark.parametrize("path", ["/src2", "/work", "/other/src"])
def test_volumes_elsewhere_are_mounted(path: str) -> None:
    for overlay in below(path):
        assert path in mounts(pod(code=PARTS, **overlay))
