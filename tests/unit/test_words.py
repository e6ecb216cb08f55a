"""The words that docs/design.md retires are gone from code, docs and status texts."""

import re
import subprocess

from tests.cluster.tiers import ROOT

RETIRED = (
    r"\bnois[ey]\b|(_|\b)NOISE(_|\b)|\bnoise_",
    r"\b(an?|mere|plain) echo(es)?\b|\bechoes\b|\b(is_)?ECHO\b|\bis_echo\b",
    r"\blook_again\b|\blooks? again\b|\blooked\b(?! for| at)|\brests_on_sight\b",
    r"\bPodStamp\b|\brestamped\b|(?<!\w)stamp\(",
    r"\bin_row\b|\binRow\b",
    r"\btrouble\b(?!-?shooting)",
    r"\b(read|Agent|with_final)_?[sS]ummary\b|\bword_of\b",
    r"\bunheard[_ ]of\b|\bremains\(|\bregained\(|\bSAVED = \"",
)
PLACES = ("operator", "docs", "charts", "manifests", "README.md", "CONTRIBUTING.md", "SECURITY.md")


def test_retired_words_are_gone() -> None:
    listed = subprocess.check_output(["git", "ls-files", *PLACES], cwd=ROOT, text=True).split()
    found = []
    for name in listed:
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            # The glossary itself names them, in its last column.
            if name == "docs/design.md" and line.startswith("| ") and line.count("|") == 4:
                continue
            if "noise of 28 x 28" in line:  # pixels
                continue
            found += [f"{name}:{number}: {line.strip()}" for w in RETIRED if re.search(w, line)]
    assert found == []


def test_the_expressions_find_what_they_are_for() -> None:
    lines = (
        "peers' noise",
        "NOISE_SECONDS",
        "is an echo",
        "look_again=1",
        "budget.inRow",
        "stamp(now)",
    )
    for line in lines:
        assert any(re.search(word, line) for word in RETIRED), line
