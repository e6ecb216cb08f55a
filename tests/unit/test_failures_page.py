"""The published page of failures belongs to the catalogue that the api tier runs."""

from tests.api.failures.catalogue import COLD_KINDS, KINDS
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
