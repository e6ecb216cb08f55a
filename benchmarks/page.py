"""docs/benchmarks.md, which two commands write: all of it, or the part about scale."""

from tests.cluster.tiers import ROOT

PATH = "docs/benchmarks.md"
SCALE = "## Scale\n"


def write(text: str) -> None:
    """Write the whole page."""
    (ROOT / PATH).write_text(text)
    print(f"wrote {PATH}")


def put_scale(text: str) -> None:
    """Put the part about scale at the page's end, in place of the former one."""
    write(with_scale((ROOT / PATH).read_text(), text))


def put_section(text: str) -> None:
    """Put one section of that part in the place of the former one, or at its end."""
    write(with_section((ROOT / PATH).read_text(), text))


def with_section(page: str, text: str) -> str:
    """The page with this section of the part about scale."""
    head, *old = page.split("\n### ")
    title, *_ = text.removeprefix("### ").splitlines()
    names = [each.splitlines()[0] for each in old]
    new = f"{text.removeprefix('### ').rstrip()}\n"
    at = names.index(title) if title in names else len(old)
    return "\n### ".join([head, *old[:at], new, *old[at + 1 :]])


def with_scale(page: str, text: str) -> str:
    """The page with this part about scale."""
    rest = page.partition(SCALE)[0].rstrip()
    return f"{rest}\n\n{text}"
