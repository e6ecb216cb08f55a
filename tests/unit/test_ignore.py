"""`.ddpjobignore` means what .gitignore would mean."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob.code.ignore import ignores

FILES = (
    *("a", "b.py", "a.b.py", "data/a", "data/x/a", "data/x/b.py", "data/x/y/z/c", "x/data/a"),
    *("x/y/a", "x/y/b.py", ".env", "x/.hidden", "a b", "x/a ", "#a", "!a", "x/!a", "[a]", "x/a]"),
    *("a-b", "a^b", "A", "B.PY", "aab", "abab", "x*y", "x?y", "back\\slash", "1", "x/2", "_", "-"),
    *("data.csv", "x/data.csv", "deep/er/and/deep/er/a", "x/y/data/z/data/a"),
)
CASES = {
    "": (),
    "# all of it\n#a\n": (),
    "\\#a\n": ("#a",),
    "\\!a\n": ("!a", "x/!a"),
    "data/\n": tuple(file for file in FILES if "data/" in file),
    "data": tuple(file for file in FILES if "data/" in file),
    "/data": tuple(file for file in FILES if file.startswith("data/")),
    "*.py\n!b.py\n": ("a.b.py",),
    "data/\n!data/a\n": tuple(file for file in FILES if "data/" in file),
    "data/*\n!data/a\n": ("data/x/a", "data/x/b.py", "data/x/y/z/c"),
    "data/**/a": ("data/a", "data/x/a"),
    "**/a": tuple(file for file in FILES if file.split("/")[-1] == "a"),
    "x/**": tuple(file for file in FILES if file.startswith("x/")),
    "x/*/": tuple(file for file in FILES if file.startswith("x/") and file.count("/") > 1),
    "a \n": tuple(file for file in FILES if file.split("/")[-1] == "a"),
    "a\\ \n": ("x/a ",),
    "a\\   \n": ("x/a ",),
    "back\\\\slash  \n": ("back\\slash",),
    "back\\\\  \n": (),
    "a\r\n": tuple(file for file in FILES if file.split("/")[-1] == "a"),
    "[[:upper:]]*": ("A", "B.PY"),
    "[!a-z]": ("A", "1", "x/2", "_", "-"),
    "[]a]": tuple(file for file in FILES if file.split("/")[-1] == "a"),
    "a[": (),
    "a[[:nonsense:]]": (),
    "a[[::]]": (),
    "[[:]a]": ("[a]",),
    "[[:digit]a]": ("[a]",),
    "[[:digit:]": (),
    "back\\\\slash": ("back\\slash",),
    "x\\*y": ("x*y",),
    "?": tuple(file for file in FILES if 1 in map(len, file.split("/"))),
}


def ignored(text: str) -> set[str]:
    is_ignored = ignores(text)
    return {file for file in FILES if is_ignored(file)}


@pytest.mark.parametrize("text", CASES)
def test_the_rules_are_those_of_git(text: str) -> None:
    assert ignored(text) == set(CASES[text])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with all of the files and no commit."""
    folder = tmp_path_factory.mktemp("tree")
    try:
        subprocess.run(["git", "init", "-q", folder], check=True)
    except FileNotFoundError:
        pytest.skip("no git")
    for file in FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    yield folder


def of_git(tree: Path, text: str) -> set[str]:
    """What git ignores by these patterns."""
    patterns = tree / ".git/patterns"
    patterns.write_bytes(text.encode())
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    words = ["git", "ls-files", "-z", "--others", f"--exclude-from={patterns}"]
    kept = subprocess.check_output(words, cwd=tree, env=env).decode().split("\0")
    return set(FILES) - set(kept)


@pytest.mark.parametrize("text", CASES)
def test_git_says_the_same_of_the_examples(tree: Path, text: str) -> None:
    assert of_git(tree, text) == set(CASES[text])


WORDS = (
    *("a", "b", "x", "y", "data", "py", ".", "*", "**", "?", "/", "/**/", "**/", "/**", "\\", "!"),
    *(
        "[",
        "]",
        "[a-x]",
        "[!a]",
        "[^a]",
        "[]a]",
        "[a",
        "[[:digit:]]",
        "[[:punct:]]",
        "[x-a]",
        "[--a]",
    ),
    *("#", " ", "-", "***", "[[:", "[a-]", "[\\]]", "\\*", "\\ ", "[!-a]", "[/]", "A", "^", "er"),
)
# Of `aa**/b` git compares `aa` by itself, and takes the rest for a pattern with folders: it fits
# `aab`. Its documentation says that such asterisks are ordinary ones, and so do we.
PECULIAR = re.compile(r"!?/?[^*?\[\\]*[^*?\[\\/]\*\*+/")
lines = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
patterns = st.lists(lines.filter(lambda line: not PECULIAR.match(line)), max_size=4)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(patterns.map("\n".join))
def test_git_says_the_same_of_whatever_is_written(tree: Path, text: str) -> None:
    assert ignored(text) == of_git(tree, text)


@pytest.mark.parametrize(
    "pattern",
    [
        *("*a" * 60 + "b", "**/a/" * 60 + "b", "[a-z]*" * 60 + "!", "?*" * 80 + "b"),
        *("b" + " " * 5000 + "\\", "[" + "[:" * 80_000, "[" + "[:" * 80_000 + "x]"),
    ],
    ids=lambda pattern: pattern[:9],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    path = "/".join(["a" * 100] * 20 + ["a"] * 100)
    begin = time.process_time()
    is_ignored = ignores(pattern)
    assert not is_ignored(path)
    assert time.process_time() - begin < 20
