"""docs/benchmarks.md, which two commands write parts of."""

from tests.cluster.tiers import ROOT

PATH = "docs/benchmarks.md"
SCALE = "## Scale\n"


def put_scale(text: str) -> None:
    """Put the part about scale at the page's end, in place of the former one."""
    file = ROOT / PATH
    file.write_text(with_scale(file.read_text(), text))
    print(f"wrote {PATH}")


def with_scale(page: str, text: str) -> str:
    """The page with this part about scale."""
    rest = page.partition(SCALE)[0].rstrip()
    return f"{rest}\n\n{text}"
