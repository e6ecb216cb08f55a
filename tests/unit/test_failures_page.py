"""The published page of failures belongs to the catalogue that the api tier runs."""

from tests.api.failures.catalogue import COLD_KINDS, KINDS
from tests.api.failures.page import page
from tests.api.failures.table import Kind, exit_code
from tests.cluster.tiers import ROOT


def rows(text: str) -> list[str]:
    return [" | ".join(line.split(" | ")[:2]) for line in text.splitlines() if line[:3] in MARKS]


MARKS = ("| ✓", "| ✗", "| –")


def test_the_page_has_every_kind_and_says_which_are_wrong() -> None:
    text = (ROOT / "docs" / "failures.md").read_text()
    names = [f"{kind.name} (played)" if kind.life else kind.name for kind in KINDS]
    marks = ["✗" if kind.says else "✓" for kind in KINDS]
    told = [f"| {mark} | {name}" for mark, name in zip(marks, names, strict=True)]
    assert rows(text) == told, "make bench-failures"
    right = marks.count("✓")
    assert f"Right: {right} of {len(KINDS)}." in text
    assert f"in {right} of [{len(KINDS)} kinds" in (ROOT / "README.md").read_text()
    assert f"each of {len(KINDS)} kinds" in (ROOT / "docs" / "README.md").read_text()


def test_every_kind_has_a_job_of_its_own_and_a_reason_where_it_is_wrong() -> None:
    every = (*KINDS, *COLD_KINDS)
    assert len({kind.job for kind in every}) == len(every) > len(KINDS) >= 30
    assert all(bool(kind.says) == bool(kind.why) for kind in KINDS)


def test_only_what_was_seen_is_right() -> None:
    right, wrong, absent = (
        Kind(name, exit_code(3), why="because") for name in ("right", "wrong", "absent")
    )
    seen = {
        name: {"reason": "ExitCode", "rank": 1, "pod": f"{name}-0-1", "exitCode": code}
        | {"message": f"exited with code {code}"}
        for name, code in (("right", 3), ("wrong", 4))
    }
    text = page((right, wrong, absent), seen)
    assert "Right: 1 of 3." in text and "exit code 4: `exited with code 4`<br>**wrong**" in text
    assert rows(text) == ["| ✓ | right", "| ✗ | wrong", "| – | absent"]
