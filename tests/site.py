"""`python -m tests.site FOLDER`: the sources of the documentation's site, from the Markdown files.

Writes `zensical.toml` and `pages/` into FOLDER. The pages are those that docs/README.md links to,
in its order and under its headings; README.md is the home page. A link to another file of the
repository leads to its host. `llms.txt` lists the pages for programs that read.
"""

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ddpjob import __version__
from tests.links import targets

ROOT = Path(__file__).resolve().parents[1]
HOST = "https://github.com/ddpjob/ddpjob"
INDEX = ROOT / "docs" / "README.md"
DESCRIPTION = "Distributed PyTorch on Kubernetes, or on your laptop"
_ENTRY = re.compile(r"- \[([^\]]+)\]\(([^)#]+)\)(?:: (.+)|\.)")

_CONFIG = """\
[project]
site_name = "ddpjob {version}"
site_description = "{description}"
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


class Entry(NamedTuple):
    """A line of the index."""

    heading: str
    page: Path
    title: str
    words: str
    """What the page is about; may be empty."""


def pages() -> dict[Path, str]:
    """Each page of the site, and the name of its file there."""
    found = {ROOT / "README.md": "index.md", INDEX: "pages.md"}
    for entry in _entries():
        page = entry.page
        found[page] = f"{entry.title}.md" if page.name == "README.md" else page.name
    return {page: name.lower() for page, name in found.items()}


def _entries() -> Iterator[Entry]:
    """Each entry of the index, in its order."""
    heading = ""
    for line in INDEX.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif found := _ENTRY.fullmatch(line):
            page = Path(os.path.normpath(INDEX.parent / found[2]))
            yield Entry(heading, page, found[1], found[3] or "")


def config() -> str:
    """The site's settings, with the index as its navigation."""
    files, sections = pages(), dict[str, list[str]]()
    for entry in _entries():
        item = f"{{ {json.dumps(entry.title)} = {json.dumps(files[entry.page])} }}"
        sections.setdefault(entry.heading, []).append(item)
    nav = ['  { "Home" = "index.md" },']
    nav += [
        f"  {{ {json.dumps(heading)} = [\n    " + ",\n    ".join(items) + "\n  ] },"
        for heading, items in sections.items()
    ]
    return _CONFIG.format(
        version=__version__, description=DESCRIPTION, host=HOST, nav="\n".join(nav)
    )


def llms() -> str:
    """The file llms.txt (llmstxt.org): each page of the site, with what it is about."""
    lines, heading = [f"# ddpjob {__version__}", "", f"> {DESCRIPTION}", ""], "Home"
    lines += [f"## {heading}", "", "- [README](index.html): what ddpjob is, and how to begin."]
    for entry in _entries():
        if entry.heading != heading:
            heading = entry.heading
            lines += ["", f"## {heading}", ""]
        page = pages()[entry.page].removesuffix(".md")
        lines.append(f"- [{entry.title}]({page}.html)" + (f": {entry.words}" * bool(entry.words)))
    return "\n".join([*lines, ""])


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
    (folder / "pages" / "llms.txt").write_text(llms())
    (folder / "zensical.toml").write_text(config())


def main() -> None:
    """Write the sources."""
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
