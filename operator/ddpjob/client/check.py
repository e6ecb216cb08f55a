"""One line of `ddpjob doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check has ended."""

    OK = "ok"
    WARN = "warn"
    """It works, though not all of it."""
    FAIL = "FAIL"
    SKIP = "?"
    """This user cannot see it."""


class Part(StrEnum):
    """What is checked."""

    SERVER = "server"
    API = "api"
    OPERATOR = "operator"
    RIGHTS = "rights"
    GPUS = "gpus"
    ADMIN = "admin"


@dataclass(frozen=True)
class Check:
    """One line of what is, and the next step where something is missing. Both are printable."""

    part: Part
    level: Level
    text: str
    advice: str = ""
