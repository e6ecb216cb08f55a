"""Names as the API server makes them of `generateName`, for objects that must be known before."""

import secrets
from collections.abc import Callable

# What is appended: so many letters, of which no words are made.
LETTERS, GENERATED = "bcdfghjklmnpqrstvwxz2456789", 5
# Characters of such a name.
MAX_NAME = 63


def generated(start: str, *, pick: Callable[[str], str] | None = None) -> str:
    """Return a name that begins so, cut to leave room for the letters.

    `pick` returns one of a text's characters; by default one is drawn.
    """
    letters = "".join((pick or secrets.choice)(LETTERS) for _ in range(GENERATED))
    return start[: MAX_NAME - GENERATED] + letters
