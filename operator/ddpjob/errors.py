"""All errors that ddpjob raises on purpose.

DDPJobError
├── InvalidJob          a user's file breaks a rule (also a ValueError): field, value, rule
└── ClusterError        an error answer of the API server, real or local: code, reason, message
    ├── NotFound        404
    ├── Conflict        409: a precondition failed, or the object has changed since it was read
    │   └── AlreadyExists   the name is taken
    ├── Expired         410: the watch has to start again from a list
    ├── Refused         400, 403, 413, 422 …: the same request will be refused again
    └── Unavailable     408, 429, 5xx, no answer: another try may succeed
"""

from typing import Any

from ddpjob.text import printable

# Characters of the parts of a message. The message of a condition has 4096.
MAX_PATH, MAX_RULE, MAX_ANSWER = 512, 2048, 4096


class DDPJobError(Exception):
    """The base of all errors that this package raises on purpose."""


class InvalidJob(DDPJobError, ValueError):
    """A field breaks a rule: `spec.nnodes: must be at least 1, got 0`.

    Path and rule may have text of a user, so they are made printable here.
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

    `code` is the HTTP status, or 0 without an answer. The text is the server's or a webhook's, so
    it is made printable here.
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

    A quota for which many requests contend answers so too.
    """


class AlreadyExists(Conflict):
    """The name is taken."""


class Expired(ClusterError):
    """The server no longer has the history after the resource version of a watch."""


class Refused(ClusterError):
    """The request is invalid or forbidden; only a change of the object or of the cluster helps."""


class Unavailable(ClusterError):
    """The server is overloaded, failing or out of reach.

    `retry_after` is the pause in seconds that the server asks for, or None.
    """


def cluster_error(
    code: int, reason: str, message: str, retry_after: float | None = None
) -> ClusterError:
    """Return the error of the class that stands for HTTP status `code`."""
    kinds: dict[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Expired}
    transient = code in (0, 401, 408, 429) or code >= 500
    kind = kinds.get(code, Unavailable if transient else Refused)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, reason, message, retry_after)
