"""The result that rank 0 leaves in its file, for the termination message."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.environment import launcher_env, prepare_folders
from ddpjob_agent.failures.verdict import completed, termination_message
from ddpjob_agent.round import RESULT_BYTES, read_result
from tests.unit.agent.samples import config


def left(tmp_path: Path, text: str | bytes, **changes: str) -> dict[str, Any] | None:
    ours = config(tmp_path, **changes)
    path = Path(ours.result_file)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_result(ours)


@pytest.mark.parametrize("text", ['{"loss": 0.5}', "null", "NaN", ' ["a", 1] ', '"h\\u00e9"'])
def test_a_result_is_told_as_it_was_left(tmp_path: Path, text: str) -> None:
    found = left(tmp_path, text)
    assert found and json.dumps(found["value"]) == json.dumps(json.loads(text))
    assert found["size"] == len(json.dumps(json.loads(text), separators=(",", ":")))
    content = termination_message(completed(1.0, found), {"step": 1})
    assert json.dumps(json.loads(content)["result"]) == json.dumps(found)


def test_the_limit_is_the_size_without_blanks(tmp_path: Path) -> None:
    most = json.dumps("x" * (RESULT_BYTES - 2))
    assert left(tmp_path, "\n" * 5000 + most) == {"value": json.loads(most), "size": RESULT_BYTES}
    assert left(tmp_path, most[:-1] + 'x"') == {"size": RESULT_BYTES + 1}
    assert left(tmp_path, '"' + "ü" * 400 + '"') == {"size": 2402}, "as ASCII"
    ours = config(tmp_path)
    os.truncate(ours.result_file, 10**12)
    assert read_result(ours) == {"size": 10**12}, "it is not read"
    os.unlink(ours.result_file)
    os.mkfifo(ours.result_file)
    assert read_result(ours) == {"size": 0}, "a FIFO blocks nobody"


@pytest.mark.parametrize("text", ["{", b"\xff", "[" * 40 + "]" * 40])
def test_what_is_no_json_has_no_value(
    tmp_path: Path, text: str | bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left(tmp_path, text) == {"size": min(len(text), RESULT_BYTES)}
    assert "is no JSON" in capsys.readouterr().err


def test_only_rank_0_has_a_result_and_only_if_there_is_one(tmp_path: Path) -> None:
    assert read_result(config(tmp_path)) is None
    assert left(tmp_path, "1", DDPJOB_NODE_RANK="1", DDPJOB_NNODES="2") is None


def test_the_ranks_are_told_the_file_and_each_round_begins_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = config(tmp_path)
    left(tmp_path, "1")
    path = launcher_env(ours, {}, "")["DDPJOB_RESULT_FILE"]
    assert Path(path).read_text() == "1"
    monkeypatch.setenv("DDPJOB_RUN_DIR", ours.run_dir)
    prepare_folders(ours.run_dir)
    assert read_result(ours) is None


def test_the_largest_result_fits_beside_the_largest_progress() -> None:
    value = {"value": "\x7f" * (RESULT_BYTES - 2), "size": RESULT_BYTES}
    page = {
        "step": 1,
        "metrics": {"\x01" * 63 + str(i): -1.7976931348623157e308 for i in range(32)},
    }
    page |= {"namespace": "n" * 63, "job": "j" * 253}
    content = termination_message(completed(1795248791.701494, value), page)
    assert len(content) <= 4096 and json.loads(content)["result"] == value
