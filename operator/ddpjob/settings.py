"""The controller's settings. Local mode shortens some of them."""

from dataclasses import dataclass, field

from ddpjob.pods.allowlist import Policy


@dataclass(frozen=True)
class Settings:
    """The settings of a controller. All times are in seconds."""

    policy: Policy = field(default_factory=Policy)
    """The allow-list for pods of jobs."""
    kueue: bool = False
    """Jobs with a queue of Kueue get no pods before Kueue has admitted them."""
    loopback_agents: bool = True
    """Agents may be at addresses of this machine, and at ports that their pods' annotations have.

    So it is in local mode. On a cluster whoever can change pods would choose where requests go."""
    workers: int = 16
    """The number of jobs that are reconciled at the same time."""
    pods_per_job: int = 32
    """The number of pods of one job that are created, or deleted, at the same time.

    It is limited, because one wide job must not hold all connections."""
    minor_status: float = 1.0
    """The time between two writes of one job's status if only counts and progress have changed.

    Transitions are written at once."""
    progress_poll: float = 5.0
    """The time between two requests to the agent of rank 0."""
    progress_write: float = 10.0
    """The time between two writes of one job's status if only progress has changed."""
    progress_writes_per_second: float = 20.0
    """The number of writes per second, for all jobs together, if only progress has changed.

    With many jobs it makes `progress_write` longer."""
    backoff_first: float = 0.5
    """The pause before a job is tried again after its first error. It doubles with each error."""
    backoff_cap: float = 60.0
    """The longest pause before a job is tried again after an error."""
