"""Tiers of tests: the folders under tests/, and what it means that one cannot run here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
TIERS = ("unit", "golden", "chart", "chaos", "trainer", "api", "e2e")


class Unavailable(Exception):
    """This machine lacks what a tier needs: what is missing, and what to do about it."""

    def __init__(self, missing: str, *, remedy: str) -> None:
        self.missing = missing
        self.remedy = remedy
        super().__init__(f"{missing}: {remedy}")


@contextmanager
def skipping_where_unavailable() -> Iterator[None]:
    """Turn Unavailable into a skip that says what is missing and what to do.

    `DDPJOB_REQUIRE` turns the skip into a failure (tests/conftest.py).
    """
    try:
        yield
    except Unavailable as error:
        pytest.skip(str(error))


def tier_of(path: Path) -> str | None:
    """The tier that a test file belongs to, or None for a file outside the tier folders."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if parts and parts[0] in TIERS else None


def required_tiers() -> set[str]:
    """Tiers in which a skip counts as a failure: `DDPJOB_REQUIRE`, a comma list, or `all`.

    Raises pytest.UsageError for a name that is no tier: a typo would silently require nothing.
    """
    names = {name.strip() for name in os.environ.get("DDPJOB_REQUIRE", "").split(",")} - {""}
    if names == {"all"}:
        return set(TIERS)
    if unknown := names - set(TIERS):
        raise pytest.UsageError(
            f"DDPJOB_REQUIRE: must be `all` or of {', '.join(TIERS)}, got {', '.join(unknown)}"
        )
    return names


def cache_folder() -> Path:
    """Where what is built once is kept: `$DDPJOB_CACHE`, else `ddpjob` in the user's cache."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddpjob"
    return Path(os.environ.get("DDPJOB_CACHE") or fallback)
