"""All errors that ddpjob raises on purpose.

DDPJobError
├── InvalidJob          a user's file breaks a rule (also a ValueError): field, value, rule
├── LoginFailed         no way into the cluster: no kubeconfig, no such context, 401, …
├── JobFailed           the job has failed: its primary failure
├── JobTimeout          the job is not as far as it was waited for (also a TimeoutError)
├── JobRefused          the job gets no pods: the installation or the API server refuses them
├── NoResult            the job has succeeded, and left no value
│   └── ResultTooLarge      the value has more bytes than the status may have
└── ClusterError        an error answer of the API server, real or local: code, reason, message
    ├── NotFound        404
    │   └── NotInstalled    the cluster has no DDPJob API
    ├── Conflict        409: a precondition failed, or the object has changed since it was read
    │   └── AlreadyExists   the name is taken
    ├── Expired         410: the watch has to start again from a list
    ├── Refused         400, 403, 413, 422 …: the same request will be refused again
    │   └── Forbidden       403 by RBAC: verb, resource, namespace
    └── Unavailable     408, 429, 5xx, no answer: another try may succeed
"""

import re
from typing import Any

from ddpjob.text import printable, printable_lines

# Characters of the parts of a message. The message of a condition has 4096.
MAX_PATH, MAX_RULE, MAX_ANSWER = 512, 2048, 4096
# What RBAC answers to whoever lacks a right.
_RBAC = re.compile(
    r'User "(?P<user>[^"]{1,512})" cannot (?P<verb>[a-z]{1,32})'
    r' resource "(?P<resource>[^"]{1,256})" in API group "[^"]{0,256}"'
    r'(?: in the namespace "(?P<namespace>[^"]{1,256})"| at the cluster scope)'
)


class DDPJobError(Exception):
    """The base of all errors that this package raises on purpose.

    `advice` is the next step for a person, or empty.
    """

    advice: str = ""


class InvalidJob(DDPJobError, ValueError):
    """A field breaks a rule: `spec.nnodes: must be at least 1, got 0`.

    Path, rule and advice may have text of a user, so they are made printable here.
    """

    def __init__(self, path: str, rule: str, value: Any = None, advice: str = "") -> None:
        self.path, self.rule = printable(path, MAX_PATH), printable(rule, MAX_RULE)
        self.value = value
        super().__init__(f"{self.path}: {self.rule}")
        if advice:
            self.advice = printable(advice, MAX_RULE)
            self.add_note(f"next: {self.advice}")  # which a traceback shows, as in a notebook


class LoginFailed(DDPJobError):
    """There is no way into the cluster. The text names the kubeconfig, the context or the plugin.

    `advice` is what to do.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(printable(message, MAX_ANSWER))
        self.advice = printable(advice, MAX_RULE)


class JobFailed(DDPJobError):
    """The job has failed. The attributes are those of its primary failure, where there is one.

    All of them may quote the script, so they are made printable here; `traceback` keeps its lines.
    `job` is the last snapshot of the job, if the error comes from the SDK.
    """

    job: Any = None

    def __init__(
        self,
        name: str,
        reason: str,
        *,
        rank: int | None = None,
        node: str | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        exception: str | None = None,
        message: str = "",
        traceback: str = "",
    ) -> None:
        self.name, self.reason = printable(name, MAX_PATH), printable(reason, MAX_PATH)
        self.rank, self.exit_code = rank, exit_code
        self.node, self.signal, self.exception = (
            text and printable(text, MAX_PATH) for text in (node, signal, exception)
        )
        self.message = printable(message, MAX_ANSWER)
        self.traceback = printable_lines(traceback, MAX_ANSWER)
        who = "a pod" if rank is None else f"rank {rank}"
        cause = "" if rank is None and not self.node else f"; first cause: {who}"
        cause += f" on {self.node}" if self.node else ""
        cause += f": {self.message}" if self.message else ""
        super().__init__(f"{self.name} failed: {self.reason}{cause}")


class JobTimeout(DDPJobError, TimeoutError):
    """The job was not as far as it was waited for. It runs on. `job` is its last snapshot."""

    def __init__(self, job: Any, message: str) -> None:
        self.job = job
        super().__init__(printable(message, MAX_ANSWER))


class JobRefused(DDPJobError):
    """The job gets no pods until somebody changes something. It stays. `job` is its snapshot."""

    def __init__(self, job: Any) -> None:
        self.job = job
        super().__init__(printable(f"{job.name} is {job.state}: {job.refusal}", MAX_ANSWER))
        self.advice = f"ddpjob describe {printable(job.name, MAX_PATH)} says what to change"


class NoResult(DDPJobError):
    """The job has succeeded, and its rank 0 has left no value, or none that is JSON."""

    def __init__(self, name: str, why: str, advice: str = "") -> None:
        self.name = printable(name, MAX_PATH)
        super().__init__(f"{self.name} has no result: {printable(why, MAX_RULE)}")
        self.advice = printable(advice, MAX_RULE)


class ResultTooLarge(NoResult):
    """The value that rank 0 has left has `size` bytes as JSON, and `limit` are allowed."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            name,
            f"it has {size:,} bytes as JSON, and {limit:,} are the limit",
            "write it to the checkpoint folder (DDPJOB_CHECKPOINT_DIR), and return the file's name",
        )


class ClusterError(DDPJobError):
    """The API server's answer to a request that failed.

    `code` is the HTTP status, or 0 without an answer. The text is the server's or a webhook's, so
    it is made printable here.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        advice: str = "",
    ) -> None:
        self.code, self.retry_after, self.advice = code, retry_after, advice
        self.reason = printable(reason, MAX_PATH)
        self.message = printable(message.strip(), MAX_ANSWER)  # plain text ends with a newline
        super().__init__(f"{code} {self.reason}: {self.message}")


class NotFound(ClusterError):
    """The object, or the kind, does not exist."""


class NotInstalled(NotFound):
    """The cluster has no DDPJob API."""


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


class Forbidden(Refused):
    """A right is missing: `user` may not `verb` a `resource` (`pods/log`) in `namespace`.

    `namespace` is None for the rights on the whole cluster. All four are the server's own words.
    """

    def __init__(
        self, code: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(code, reason, message, retry_after)
        found = _RBAC.search(self.message)
        parts = found.groupdict() if found else {}
        self.user, self.verb = parts.get("user") or "", parts.get("verb") or ""
        self.resource, self.namespace = parts.get("resource") or "", parts.get("namespace")


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
    # Quotas and admission answer 403 too; no right would help there.
    if code == 403 and _RBAC.search(message[:MAX_ANSWER]):
        kind = Forbidden
    return kind(code, reason, message, retry_after)
