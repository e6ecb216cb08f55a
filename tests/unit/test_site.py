"""The site of the documentation: its pages, its navigation, its links."""

import pytest

from tests import site
from tests.cluster.tiers import ROOT


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = set(site.pages())
    written = {path for path in (ROOT / "docs").glob("*.md")}
    assert written <= listed
    assert len(set(site.pages().values())) == len(listed)


@pytest.mark.parametrize(
    "link, place",
    [
        ("api.md#spec", "api.md#spec"),
        ("../SECURITY.md", "security.md"),
        ("../README.md", "index.md"),
        ("pictures/restart.svg", "pictures/restart.svg"),
        ("../examples/digits.yaml", f"{site.HOST}/blob/main/examples/digits.yaml"),
        ("#here", "#here"),
        ("https://kubernetes.io/docs", "https://kubernetes.io/docs"),
    ],
)
def test_a_link_leads_where_the_site_has_it(link: str, place: str) -> None:
    file = ROOT / "docs" / "unwritten.md"
    assert site.with_links(f"[words]({link})", file, [link], site.pages()) == f"[words]({place})"
