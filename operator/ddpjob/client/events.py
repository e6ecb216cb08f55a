"""Kubernetes events about a job. They may quote anybody, so all texts are printable here."""

from dataclasses import asdict, dataclass
from typing import Any

from ddpjob import why
from ddpjob.json_depth import Body

MAX_MESSAGE = 1024


@dataclass(frozen=True)
class Event:
    """What Kubernetes has noted of a job, once or several times. All texts are printable."""

    time: str | None
    """When it happened last, in RFC 3339."""
    type: str
    """Normal or Warning."""
    reason: str
    """What has happened, in one word, such as FirstStep."""
    message: str
    """The same in a sentence."""
    count: int
    """How often it has happened."""

    def to_record(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return asdict(self)


def read_event(body: Body) -> Event:
    """Return the event that an object of Kubernetes describes."""
    times = (why.text(body, key, limit=64) for key in ("lastTimestamp", "eventTime"))
    return Event(
        time=next(filter(None, times), None),
        type=why.text(body, "type", limit=32),
        reason=why.text(body, "reason", limit=128),
        message=why.text(body, "message", limit=MAX_MESSAGE),
        count=why.number(body, "count") or 1,
    )
