"""The check of links finds what leads nowhere, and nothing else."""

import subprocess
from pathlib import Path

from tests.links import broken_links

PAGE = """# One `ddpjob run --local`, or two?

[whole](docs/two.md) [place](docs/two.md#the-end) [again](docs/two.md#the-end-1)
[own](#one-ddpjob-run---local-or-two) [folder](docs) [web](https://example.com/gone)
[named](docs/two.md#mark) ![picture](docs/a%20b.svg) `[code](nowhere)`

| [absent](docs/three.md) |
| --- |
| [no heading](docs/two.md#middle) |

[later][ref] [untracked](new.md) [outside](../gone) [not a page](docs/a%20b.svg#x)

[ref]: docs/four.md
"""


def test_only_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "two.md").write_text("# The end\n\n<a id='mark'></a>\n\n## The *end*\n")
    (tmp_path / "docs" / "a b.svg").write_text("<svg/>")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, timeout=200)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True, timeout=200)
    (tmp_path / "new.md").touch()
    absent = "no such file in the repository"
    assert list(broken_links(tmp_path)) == [
        f"README.md:7: docs/three.md: {absent}",
        "README.md:9: docs/two.md#middle: no such heading in docs/two.md",
        f"README.md:11: docs/four.md: {absent}",
        f"README.md:11: new.md: {absent}",
        f"README.md:11: ../gone: {absent}",
        "README.md:11: docs/a%20b.svg#x: an anchor in a file that is not Markdown",
    ]
