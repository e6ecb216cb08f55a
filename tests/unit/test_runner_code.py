"""A pod whose code is a folder of this machine has nothing of an archive of it."""

import json
from pathlib import Path

import pytest

from ddpjob.json_depth import Body
from ddpjob.local.launch import main_container, without_archive
from ddpjob.local.volumes import PodFolders, config_map_volumes, mount
from tests.builders import job, made_pod

CLAIM = {"persistentVolumeClaim": {"claimName": "nfs"}}
SUM = {"sha256": "0" * 64}


@pytest.mark.parametrize(
    "spec",
    [
        {"code": {"configMaps": ["a", "b"], **SUM}},
        {"code": {"volume": CLAIM, "path": "x", **SUM}},
        {"code": {"volume": CLAIM, "path": "x", **SUM}, "checkpoint": {"volume": CLAIM}},
    ],
    ids=["ConfigMaps", "volume", "shared claim"],
)
def test_nothing_of_the_archive_is_left(tmp_path: Path, spec: Body) -> None:
    body = made_pod(job(**spec))
    found = without_archive(body)
    text = json.dumps(found)
    assert "DDPJOB_CODE_PARTS" not in text and "DDPJOB_CODE_SHA256" not in text
    assert "/ddpjob/code" not in text and "ddpjob-code" not in text
    assert config_map_volumes(found) == [n for n in config_map_volumes(body) if "agent" in n]
    env = {v["name"]: v.get("value") for v in main_container(found)["env"]}
    assert env["DDPJOB_CODE_DIR"] == "/src"
    mounted = mount(
        found,
        PodFolders(tmp_path, found),
        {name: {} for name in config_map_volumes(found)},
        {"ddpjob-src": Path("/mine")},
    )
    assert mounted["/src"] == Path("/mine")
    assert "/checkpoints" in mounted or "checkpoint" not in spec


def test_another_pod_stays_as_it_is() -> None:
    body = made_pod(job())
    assert without_archive(body) == body
