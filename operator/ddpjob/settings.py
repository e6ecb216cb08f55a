"""The controller's numbers, in one place. Local mode shortens some of them."""

from dataclasses import dataclass, field

from ddpjob.pods.allowlist import Policy


@dataclass(frozen=True)
class Settings:
    """How often, how many, how long; times are in seconds."""

    policy: Policy = field(default_factory=Policy)
    """What jobs may ask of their pods."""
    workers: int = 16
    """Jobs that are reconciled at the same time."""
    creates_per_job: int = 32
    """Pods of one job that are created at the same time: one wide job must not hold all
    connections."""
    minor_status: float = 1.0
    """Counts and progress alone are written at most this often for one job; transitions at once."""
    progress_poll: float = 5.0
    """How often rank 0's agent is asked."""
    progress_write: float = 10.0
    """Progress alone is written at most this often for one job …"""
    progress_writes_per_second: float = 20.0
    """… and so often for all jobs together: the interval stretches with their number."""
    backoff_first: float = 0.5
    """After an error a job is tried again after this, then twice as long …"""
    backoff_cap: float = 60.0
    """… up to this."""
