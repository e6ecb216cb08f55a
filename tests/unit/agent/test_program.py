"""What the ranks of a later round run, as agents get it and hand it on."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.config import FIRST_PROGRAM
from ddpjob_agent.nodes.group import CLEAN, RUNNING, Group, Node, Order
from ddpjob_agent.program import KEPT, Program, expand, keep, path_of
from tests.unit.agent.samples import config

A, B = "a" * 16, "b" * 16


def content(archive: bytes = b"", **changes: Any) -> tuple[bytes, str]:
    """A program as it is sent, and its print."""
    found = {"args": ["train.py"], "env": {}, "code": "", "path": "", **changes}
    line = json.dumps(found).encode()
    return line + b"\n" + archive, hashlib.sha256(line).hexdigest()[:16]


def become(tmp_path: Path, archive: bytes = b"", **changes: Any) -> tuple[Program, bool]:
    ours = Program(config(tmp_path, DDPJOB_RUN_DIR=str(tmp_path), **DDPJOB_CODE), ["old.py"])
    text, wanted = content(archive, **changes)
    keep(str(tmp_path), text)
    assert ours.is_another(wanted) and not ours.is_another("")
    changed = ours.become(wanted)
    assert not ours.is_another(wanted)
    return ours, changed


DDPJOB_CODE = {
    "DDPJOB_CODE_DIR": "/src",
    "DDPJOB_CODE_PARTS": "/ddpjob/code/x/code.tar.gz",
    "DDPJOB_PROGRAM": FIRST_PROGRAM,
}


def test_arguments_variables_and_code_are_those_of_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR", "0.1")
    monkeypatch.setenv("RANK", "3")
    args = ["train.py", "--name", "r$(RANK)", "$$(RANK)", "$(NONE)"]
    code = hashlib.sha256(b"archive").hexdigest()
    ours, changed = become(tmp_path, b"archive", args=args, env={"LR": "0.2"}, code=code)
    assert ours.arguments == ["train.py", "--name", "r3", "$(RANK)", "$(NONE)"]
    assert changed and os.environ["LR"] == "0.2"
    (part,) = ours.config.code_parts
    assert (Path(part).read_bytes(), ours.config.code_sha256) == (b"archive", code)


def test_a_part_of_an_archive_is_not_kept(tmp_path: Path) -> None:
    code = hashlib.sha256(b"archive").hexdigest()
    with pytest.raises(ValueError, match="another SHA-256"):
        keep(str(tmp_path), content(b"arch", code=code)[0])
    assert not [*tmp_path.iterdir()]


def test_variables_that_are_as_they_were_are_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR", "0.1")
    assert not become(tmp_path, env={"LR": "0.1"})[1]


def test_without_leave_of_its_pod_nothing_else_runs(tmp_path: Path) -> None:
    ours = Program(config(tmp_path, DDPJOB_RUN_DIR=str(tmp_path)), ["old.py"])
    assert not ours.is_another(A)


def test_an_archive_in_a_volume_is_read_there(tmp_path: Path) -> None:
    ours, _ = become(tmp_path, path="/ddpjob/code/next.tar.gz", code="5a")
    assert ours.config.code_parts == ["/ddpjob/code/next.tar.gz"]


def test_what_cannot_be_read_is_tried_once(tmp_path: Path) -> None:
    ours = Program(config(tmp_path, DDPJOB_RUN_DIR=str(tmp_path), **DDPJOB_CODE), ["old.py"])
    with pytest.raises(OSError, match="program-b"):
        ours.become(B)
    assert not ours.is_another(B) and ours.is_another(A)


def test_a_program_counts_by_its_own_print_and_the_latest_stay(tmp_path: Path) -> None:
    texts = [content(args=[f"{n}.py"]) for n in range(4)]
    for text, _ in texts:
        keep(str(tmp_path), text)
    kept = [Path(path_of(str(tmp_path), wanted)).exists() for _, wanted in texts]
    assert kept == [False] * (4 - KEPT) + [True] * KEPT


@pytest.mark.parametrize(
    ("text", "expected"), [("$(A)b", "1b"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$A", "$A")]
)
def test_references_are_as_in_a_pod(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def clean(group: Group, number: int, of: str, *ranks: int) -> None:
    for rank in ranks:
        group.tell(rank, Node(number, CLEAN, program=of))


def test_a_round_begins_once_all_nodes_have_what_it_runs() -> None:
    group = Group(2, lambda: None)
    for rank in (0, 1):
        group.tell(rank, Node(0, RUNNING))
    group.want(1, ends=False, program=A)
    clean(group, 1, "", 0)
    clean(group, 1, A, 1)
    assert group.order.begun == 0, "node 0 would run what it did before"
    clean(group, 1, A, 0)
    assert group.order == Order(1, 1, program=A)


def test_nodes_that_are_clean_for_something_else_are_not_clean() -> None:
    group = Group(2, lambda: None)
    group.want(1, ends=False, program=A)
    clean(group, 1, A, 0)
    group.want(1, ends=False, program=B)
    clean(group, 1, A, 1)
    clean(group, 1, B, 1)
    assert group.order.begun == 0
    clean(group, 1, B, 0)
    assert group.order == Order(1, 1, program=B)


def test_a_round_that_has_begun_runs_nothing_else() -> None:
    group = Group(1, lambda: None)
    group.want(1, ends=False, program=A)
    clean(group, 1, A, 0)
    group.want(1, ends=False, program=B)
    assert group.order == Order(1, 1, program=A)
    group.want(2, ends=False, program=B)
    assert (group.order.round, group.order.program, group.order.gently) == (2, B, True)
