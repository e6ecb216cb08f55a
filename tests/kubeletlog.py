"""A container's log as a kubelet keeps it and answers requests for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

BILLION = 1_000_000_000


@dataclass(frozen=True)
class Chunk:
    """What the runtime writes at once: a line, or a part of a long one."""

    time: int
    """Unix nanoseconds."""
    text: bytes
    ends: bool = True


def stamped(time: int) -> bytes:
    """A time as the kubelet writes it."""
    second, rest = divmod(time, BILLION)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z".encode()


def render(chunks: Sequence[Chunk], since: int | None = None, tail: int | None = None) -> bytes:
    """The answer to a request: with times, from a second on, or the last chunks only.

    It follows the kubelet's own code (cri-client, `ReadLogs`): each chunk is compared with `since`
    by itself, and a time is written where a line begins.
    """
    parts = []
    begins = True
    for chunk in chunks[-tail:] if tail else () if tail == 0 else chunks:
        if since is not None and chunk.time < since * BILLION:
            continue
        if begins:
            parts.append(stamped(chunk.time) + b" ")
        parts.append(chunk.text + (b"\n" if chunk.ends else b""))
        begins = chunk.ends
    return b"".join(parts)


def lines(chunks: Sequence[Chunk]) -> list[bytes]:
    """The texts of all lines, the last one with or without its end."""
    text = b"".join(chunk.text + (b"\n" if chunk.ends else b"") for chunk in chunks)
    found = text.split(b"\n")
    return found[:-1] if found[-1] == b"" else found
