"""Lines of the ranks' logs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LogLine:
    """A line that a rank, or the agent of a pod, has printed."""

    time: str
    """The kubelet's time of the line, RFC 3339 with nanoseconds."""
    attempt: int
    node_rank: int
    """The number of the pod in its attempt."""
    rank: int | None
    """The global rank, or None for a line of the pod's agent."""
    node: str
    """The name of the Kubernetes node."""
    pod: str
    text: str
    """The line as it was printed, without its end. It may be anything."""
