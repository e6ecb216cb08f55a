"""`python -m tests.tables FILE`: FILE with the tables of reasons written anew.

A table stands between two comments, `<!-- reasons: NAME -->` and `<!-- end -->`. Prints the file.
Exits with 1 if one of the tables has no place in it.
"""

import re
from collections.abc import Callable, Iterable

from ddpjob.plan.reasons import CONDITIONS, FAILURES
from tests.parts import print_page, with_part
from tests.reasons import counted, linked


def conditions() -> Iterable[tuple[str, ...]]:
    """A row for each reason of a condition; the condition's name stands in its first row."""
    yield "condition", "reason", "is", "meaning", "what to do"
    last = ""
    for reason in CONDITIONS:
        value = "Unknown" if reason.value is None else str(reason.value)
        kind = reason.condition if reason.condition != last else ""
        last = reason.condition
        yield kind, linked(reason.name), value, reason.means, reason.do


def failures() -> Iterable[tuple[str, ...]]:
    """A row for each reason of a failure."""
    yield "reason of a failure", "meaning", "counts"
    for reason in FAILURES:
        yield linked(reason.name), reason.means, counted(reason)


def losses() -> Iterable[tuple[str, ...]]:
    """A row for each way to lose a pod."""
    yield "what happens", "reason", "what follows"
    for reason in FAILURES:
        if reason.loss:
            yield reason.loss, f"`{reason.name}`", reason.follows


TABLES: dict[str, Callable[[], Iterable[tuple[str, ...]]]] = {
    "conditions": conditions,
    "failures": failures,
    "losses": losses,
}


def with_tables(text: str) -> str:
    """`text` with each table written anew. Raises ValueError where a table has no place."""
    for name, rows in TABLES.items():
        head, *body = ("| " + " | ".join(row) + " |" for row in rows())
        head += "\n" + "| --- " * (head.count("|") - 1) + "|"
        table = "\n".join([head, *(re.sub(r"(?<=\|) +(?=\|)", " ", row) for row in body)])
        text = with_part(text, f"reasons: {name}", table)
    return text


if __name__ == "__main__":
    print_page(with_tables)
