"""A job file: one job, and the ConfigMaps with its code beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddpjob.client.creation import with_code
from ddpjob.client.jobfile import read_job
from ddpjob.code.archive import CodeArchive, pack
from ddpjob.documents import to_yaml
from ddpjob.errors import InvalidJob
from tests.builders import job_object


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeArchive:
    """The code of a script, in three ConfigMaps."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    made = pack(folder)
    monkeypatch.setattr("ddpjob.code.archive.PART_BYTES", len(made.data) // 3 + 1)
    return made


def written(folder: Path, *bodies: Any) -> str:
    file = folder / "job.yaml"
    file.write_text("---\n".join(map(to_yaml, bodies)))
    return str(file)


def objects(archive: CodeArchive) -> list[Any]:
    maps = archive.config_maps()
    assert len(maps) == 3
    return [with_code(job_object(), archive), *maps]


def test_the_config_maps_come_in_the_order_of_their_parts(
    archive: CodeArchive, tmp_path: Path
) -> None:
    job, *maps = objects(archive)
    found = read_job(written(tmp_path, maps[2], job, maps[0], maps[1]))
    assert (found.job, list(found.config_maps)) == (job, maps)
    assert read_job(written(tmp_path, job, maps[1])).config_maps == (maps[1],)


def test_what_does_not_belong_together_is_named(archive: CodeArchive, tmp_path: Path) -> None:
    job, *maps = objects(archive)
    strange = {**maps[0], "metadata": {"name": "other\x1b[2J"}}
    for bodies, text in (
        ([job, job, *maps], "must have exactly one job, and nothing beside it but the ConfigMaps"),
        (maps, "of its code, got 0"),
        ([job, *maps, strange], r"ConfigMap 'other\\x1b\[2J' is not in spec.code.configMaps"),
    ):
        with pytest.raises(InvalidJob, match=text):
            read_job(written(tmp_path, *bodies))


@pytest.mark.parametrize("code", [None, 3, [], {"configMaps": 3}, {"configMaps": [3, "a"]}])
def test_a_job_of_any_shape_can_be_read(tmp_path: Path, code: Any) -> None:
    assert read_job(written(tmp_path, {"spec": {"code": code}})).config_maps == ()
    for whole in ({"spec": 3}, {"a": 1}, [1], "text", 3):
        (tmp_path / "any.json").write_text(json.dumps(whole))
        assert read_job(str(tmp_path / "any.json")).job == whole
