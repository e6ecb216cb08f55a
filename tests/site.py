"""`python -m tests.site FOLDER`: the sources of the documentation's site, from the Markdown files.

Writes `zensical.toml` and `pages/` into FOLDER. The pages are those that docs/README.md links to,
in its order and under its headings; README.md is the home page. A link to another file of the
repository leads to its host. `python -m tests.site --check FOLDER` reads the site that was built
there, and exits with 1 if a link in it leads nowhere, or if it loads anything from elsewhere.
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ddpjob import __version__
from tests.links import targets

ROOT = Path(__file__).resolve().parents[1]
HOST = "https://github.com/ddpjob/ddpjob"
INDEX = ROOT / "docs" / "README.md"

_CONFIG = """\
[project]
site_name = "ddpjob {version}"
site_description = "Distributed PyTorch on Kubernetes, or on your laptop"
repo_url = "{host}"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
{nav}
]

[project.theme]
# Nothing is loaded from elsewhere: the site works without a network.
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.sections", "navigation.top",
  "search.highlight",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
"pymdownx.highlight" = {{}}
"pymdownx.superfences" = {{}}

# Headings get the anchors that they have on the repository's host.
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
"""


def pages() -> dict[Path, str]:
    """Each page of the site, and the name of its file there."""
    found = {ROOT / "README.md": "index.md", INDEX: "pages.md"}
    for _, page, title in _entries():
        found[page] = f"{title}.md" if page.name == "README.md" else page.name
    return {page: name.lower() for page, name in found.items()}


def _entries() -> Iterator[tuple[str, Path, str]]:
    """Heading, page and title of each entry of the index, in its order."""
    heading = ""
    for line in INDEX.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif entry := re.match(r"- \[([^\]]+)\]\(([^)#]+)\)", line):
            yield heading, Path(os.path.normpath(INDEX.parent / entry[2])), entry[1]


def config() -> str:
    """The site's settings, with the index as its navigation."""
    files, sections = pages(), dict[str, list[str]]()
    for heading, page, title in _entries():
        entry = f"{{ {json.dumps(title)} = {json.dumps(files[page])} }}"
        sections.setdefault(heading, []).append(entry)
    nav = ['  { "Home" = "index.md" },']
    nav += [
        f"  {{ {json.dumps(heading)} = [\n    " + ",\n    ".join(entries) + "\n  ] },"
        for heading, entries in sections.items()
    ]
    return _CONFIG.format(version=__version__, host=HOST, nav="\n".join(nav))


def with_links(text: str, file: Path, links: Iterable[str], files: dict[Path, str]) -> str:
    """`text` of this file with these links as they are in the site."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        target = Path(os.path.normpath(file.parent / unquote(parts.path)))
        place = _place(target, files) + (f"#{parts.fragment}" if parts.fragment else "")
        text = text.replace(f"]({link})", f"]({place})")
    return text


def _place(target: Path, files: dict[Path, str]) -> str:
    if target in files:
        return files[target]
    name = target.relative_to(ROOT).as_posix()
    if name.startswith("docs/pictures/"):
        return name.removeprefix("docs/")
    return f"{HOST}/{'tree' if target.is_dir() else 'blob'}/main/{name}"


def write(folder: Path) -> None:
    """Write the sources; what was there before is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pages").mkdir(parents=True)
    files = pages()
    for file, name in files.items():
        links = {link for _, link in targets(file)}
        (folder / "pages" / name).write_text(with_links(file.read_text(), file, links, files))
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pages" / "pictures")
    (folder / "zensical.toml").write_text(config())


class _Links(HTMLParser):
    """What a built page links to, what it loads, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loads, self.ids = list[str](), list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if found := values.get("id"):
            self.ids.add(found)
        if (found := values.get("href")) is not None:
            loaded = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")
            (self.loads if loaded else self.links).append(found)
        if found := values.get("src"):
            self.loads.append(found)


def broken(site: Path) -> Iterator[str]:
    """A line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    read = {file: _Links(file.read_text()) for file in sorted(site.rglob("*.html"))}
    for file, found in read.items():
        name = file.relative_to(site)
        for link in found.loads + found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in found.loads and parts.scheme != "data":
                    yield f"{name}: loads {link}"
                continue
            base = site if parts.path.startswith("/") else file.parent  # as in 404.html
            target = Path(os.path.normpath(base / unquote(parts.path).lstrip("/")))
            target = target if parts.path else file
            if not target.is_file():
                yield f"{name}: {link}: no such file"
            elif parts.fragment and unquote(parts.fragment) not in read.get(target, found).ids:
                yield f"{name}: {link}: no such heading"


def main() -> int:
    """Write the sources, or check what was built of them; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="check the site that was built there")
    options = parser.parse_args()
    if not options.check:
        write(options.folder)
        return 0
    found = list(broken(options.folder / "site"))
    print("".join(f"error: {line}\n" for line in found), end="", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
