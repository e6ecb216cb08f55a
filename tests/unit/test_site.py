"""The site of the documentation: its pages, its navigation, its links."""

from pathlib import Path

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


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "here.html").write_text(
        '<link rel="stylesheet" href="/style.css"><h2 id="top">x</h2>'
        '<a href="#top"></a><a href="#low"></a><a href="there.html#top"></a>'
        '<a href="gone.html"></a><a href="https://kubernetes.io"></a>'
        '<script src="https://cdn.example.com/x.js"></script><img src="data:image/png;base64,">'
    )
    (tmp_path / "there.html").write_text("<h2 id='low'>x</h2>")
    assert "llms.txt: llms.txt: no such file" in set(site.broken(tmp_path))
    (tmp_path / "llms.txt").write_text("- [There](there.html): words\n- [Gone](gone.html)\n")
    assert set(site.broken(tmp_path)) == {
        "llms.txt: gone.html: no such file",
        "here.html: /style.css: no such file",
        "here.html: #low: no such heading",
        "here.html: there.html#top: no such heading",
        "here.html: gone.html: no such file",
        "here.html: loads https://cdn.example.com/x.js",
    }
