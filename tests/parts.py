"""Pages of which a part is generated: it stands between a comment with its name and an end."""

import re
import sys
from collections.abc import Callable
from pathlib import Path


def with_part(text: str, name: str, part: str) -> str:
    """`text` with this part written anew. Raises ValueError where it has no place, or several."""
    place = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
    text, found = place.subn(lambda match: match[1] + part + match[2], text)
    if found != 1:
        raise ValueError(f"{name}: its comments must stand there once, not {found} times")
    return text


def print_page(write: Callable[[str], str]) -> None:
    """Print the page that the command line names, written anew; exit with 1 where that fails."""
    try:
        print(write(Path(sys.argv[1]).read_text()), end="")
    except ValueError as error:
        sys.exit(f"error: {sys.argv[1]}: {error}")
