"""Sessions in the docs: each is run by a test, or says why not."""

from pathlib import Path

import pytest

from tests.cluster.tiers import ROOT
from tests.transcripts import missing, sessions

PAGE = """
<!-- session: one -->

```
$ first --flag \\
    more   # a note
shown 1.5 s
$ second
```

```sh
$ third
```

<!-- no session: needs GPUs -->
```
$ fourth
```

```yaml
no: session
```
"""


def test_a_block_has_its_mark_its_commands_and_what_is_shown() -> None:
    one, unmarked, not_run = sessions(ROOT / "docs" / "x.md", PAGE)
    assert [step.command for step in one.steps] == ["first --flag more", "second"]
    assert one.steps[0].shown == ("shown 1.5 s",) and one.steps[1].shown == ()
    assert (one.name, one.why_not, str(one)) == ("one", "", "docs/x.md:4")
    assert (unmarked.name, unmarked.why_not) == ("", "")
    assert (not_run.name, not_run.why_not) == ("", "needs GPUs")


@pytest.mark.parametrize(
    "shown, printed, first",
    [
        (["a", "b"], ["a", "b"], None),
        (["a", "…", "c"], ["a", "b", "b", "c"], None),
        (["a", "c"], ["a", "b", "c"], "c"),
        (["a", "b"], ["b", "a"], "a"),
        (["a"], ["a", "b"], "(then) b"),
    ],
)
def test_what_is_shown_must_be_printed(
    shown: list[str], printed: list[str], first: str | None
) -> None:
    assert missing(shown, printed) == first


PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("charts/*/*.md")])
    if not path.relative_to(ROOT).parts[0].startswith((".", "build"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_session_is_run_or_says_why_not(page: Path) -> None:
    bare = [str(found) for found in sessions(page) if not (found.name or found.why_not)]
    assert not bare, f"<!-- session: NAME --> or <!-- no session: REASON --> is missing: {bare}"
