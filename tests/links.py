"""`python -m tests.links`: every relative link and anchor in the Markdown files leads somewhere.

Prints each that does not, and exits with 1 if there is one. Links to other hosts are not followed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

_ID = re.compile(r"""<[a-z]+\s[^>]*\b(?:id|name)=["']([^"']+)["']""")


def broken_links(root: Path) -> Iterator[str]:
    """A line for each broken link of the files that git has in the repository at `root`."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0")
    files = {root / name for name in listed if name}
    known = files | {folder for file in files for folder in file.parents}
    for file in sorted(file for file in files if file.suffix == ".md"):
        for line, link in targets(file):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = Path(os.path.normpath(file.parent / path)) if path else file
            place = f"{file.relative_to(root)}:{line}: {link}"
            if target not in known:
                yield f"{place}: no such file in the repository"
            elif parts.fragment and target.suffix != ".md":
                yield f"{place}: an anchor in a file that is not Markdown"
            elif parts.fragment and unquote(parts.fragment) not in anchors(target):
                yield f"{place}: no such heading in {target.relative_to(root)}"


def targets(file: Path) -> Iterator[tuple[int, str]]:
    """Line and target of each link and picture."""
    for block in _blocks(file):
        for token in block.children or []:
            target = token.attrGet("href") or token.attrGet("src")
            if target:
                yield (block.map or [0])[0] + 1, str(target)


@cache
def anchors(file: Path) -> frozenset[str]:
    """What a link to `file` may name after `#`, by GitHub's rules for headings."""
    found, seen = set[str](), dict[str, int]()
    blocks = _blocks(file)
    for before, block in zip([None, *blocks], blocks, strict=False):
        found.update(_ID.findall(block.content))
        if before is not None and before.type == "heading_open":
            kinds = ("text", "code_inline")
            text = "".join(part.content for part in block.children or [] if part.type in kinds)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = seen[slug] = seen.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
    return frozenset(found)


@cache
def _blocks(file: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(file.read_text())


def main() -> None:
    """Check the repository that this file is in."""
    broken = list(broken_links(Path(__file__).resolve().parents[1]))
    print("".join(f"error: {line}\n" for line in broken), end="", file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
