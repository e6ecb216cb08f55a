"""Times as the API writes them: RFC 3339, whole seconds, UTC. They can be up to one too early.

What is read may be anybody's text: what is no time counts as none.
"""

import math
from datetime import UTC, datetime

# Characters of a time, with a long fraction.
MAX_TEXT = 64
# 9999-12-31T23:59:59Z.
_LAST = 253402300799.0


def written(moment: datetime) -> str:
    """Return a moment in UTC as text, such as `2026-01-31T12:00:00Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(seconds: float) -> str:
    """Return Unix seconds as a time, of the years 1970 to 9999."""
    return written(datetime.fromtimestamp(min(max(0.0, seconds), _LAST), UTC))


def unix_seconds(time: str | None) -> float | None:
    """Return a time as Unix seconds; None without one, and for a text that is not a time."""
    if not time or len(time) > MAX_TEXT:
        return None
    try:
        moment = datetime.fromisoformat(time)
        # Without an offset it would be this machine's time.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):  # the year 0001 east of Greenwich is before all years
        return None


def seconds_since(time: str | None, now: float) -> float:
    """Return the seconds from a time to `now`: negative for a later time, 0 without one."""
    seconds = unix_seconds(time)
    return 0.0 if seconds is None else now - seconds


def as_timestamp(time: str | None) -> str | None:
    """Return somebody else's time as `timestamp` writes it; None without one."""
    seconds = unix_seconds(time)
    return None if seconds is None else timestamp(seconds)


def duration(seconds: float) -> str:
    """Return two units at most, as kubectl writes an age: `14s`, `3m20s`, `2h5m`, `1d3h`."""
    whole = math.ceil(seconds)
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for position, (name, size) in enumerate(units):
        if whole >= size or size == 1:
            text = f"{whole // size}{name}"
            if size > 1 and (rest := whole % size // units[position + 1][1]):
                text += f"{rest}{units[position + 1][0]}"
            return text
    raise AssertionError(seconds)
