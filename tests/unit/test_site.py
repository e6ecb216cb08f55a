"""The site of the documentation: its pages, its navigation, its links."""

from tests import site
from tests.cluster.tiers import ROOT


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = set(site.pages())
    written = {path for path in (ROOT / "docs").glob("*.md")}
    assert written <= listed
    assert len(set(site.pages().values())) == len(listed)
