"""Sessions in the docs: each is run by a test, or says why not."""

from pathlib import Path

import pytest

from tests.cluster.tiers import ROOT
from tests.transcripts import sessions

PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("charts/*/*.md")])
    if not path.relative_to(ROOT).parts[0].startswith((".", "build"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_session_is_run_or_says_why_not(page: Path) -> None:
    bare = [str(found) for found in sessions(page) if not (found.name or found.why_not)]
    assert not bare, f"<!-- session: NAME --> or <!-- no session: REASON --> is missing: {bare}"
