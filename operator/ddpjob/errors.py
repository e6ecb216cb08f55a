"""Everything ddpjob raises on purpose.

DDPJobError
├── InvalidJob          what a user wrote breaks a rule (also a ValueError): field, value, rule
└── ClusterError        what the API server, real or local, answered: code, reason, message
    ├── NotFound        404
    ├── Conflict        409: a precondition failed, or the object has changed since it was read
    │   └── AlreadyExists   the name is taken
    ├── Expired         410: the watch has to start again from a list
    ├── Refused         400, 403, 413, 422 …: the same request will be refused again
    └── Unavailable     408, 429, 5xx, no answer: worth another try
"""

from typing import Any

from ddpjob.text import printable

MAX_PATH, MAX_RULE, MAX_ANSWER = 512, 2048, 4096  # characters of a message: conditions have 4096


class DDPJobError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidJob(DDPJobError, ValueError):
    """One broken rule: `spec.nnodes: must be at least 1, got 0`.

    Path and rule may hold what a user has written, so they are made printable here.
    """

    def __init__(self, path: str, rule: str, value: Any = None) -> None:
        self.path, self.rule, self.value = (
            printable(path, MAX_PATH),
            printable(rule, MAX_RULE),
            value,
        )
        super().__init__(f"{self.path}: {self.rule}")


class ClusterError(DDPJobError):
    """The API server's answer to a request that failed.

    `code` is the HTTP status, 0 without an answer. The words are the server's, or a webhook's that
    it quotes, so they are made printable here.
    """

    def __init__(
        self, code: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        self.code, self.retry_after = code, retry_after
        self.reason, self.message = printable(reason, MAX_PATH), printable(message, MAX_ANSWER)
        super().__init__(f"{code} {self.reason}: {self.message}")


class NotFound(ClusterError):
    """The object, or the kind, does not exist."""


class Conflict(ClusterError):
    """A precondition (uid) failed, or the object has changed since it was read.

    Also a quota's, for which many requests contend.
    """


class AlreadyExists(Conflict):
    """The name is taken."""


class Expired(ClusterError):
    """The resource version is too old to watch from."""


class Refused(ClusterError):
    """The request is invalid or forbidden; only a change of the object or of the cluster helps."""


class Unavailable(ClusterError):
    """The server is overloaded, failing or out of reach.

    `retry_after` is in seconds where it said so.
    """


def cluster_error(
    code: int, reason: str, message: str, retry_after: float | None = None
) -> ClusterError:
    """The class of error that stands for HTTP status `code`."""
    kinds: dict[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Expired}
    transient = code in (0, 401, 408, 429) or code >= 500
    kind = kinds.get(code, Unavailable if transient else Refused)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, reason, message, retry_after)
