"""Times as the API writes them: RFC 3339, whole seconds, UTC. They can be up to one too early."""

from datetime import UTC, datetime


def written(moment: datetime) -> str:
    """`2026-01-31T12:00:00Z`; the moment is in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp(seconds: float) -> str:
    """Unix seconds as a time."""
    return written(datetime.fromtimestamp(seconds, UTC))


def unix_seconds(time: str) -> float:
    """A time as Unix seconds."""
    return datetime.fromisoformat(time).timestamp()


def seconds_since(time: str | None, now: float) -> float:
    """Seconds from a time to `now`, negative if that is to come; 0 without one."""
    return now - unix_seconds(time) if time else 0.0
