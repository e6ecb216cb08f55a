"""What an answer of the API server that is no success means, or none at all: an error."""

import json
import ssl

from ddpjob import names
from ddpjob.cluster.login import Login
from ddpjob.errors import (
    ClusterError,
    DDPJobError,
    LoginFailed,
    NotInstalled,
    Unavailable,
    cluster_error,
)

# The reason of an Unavailable if no connection was made, so that trying again at once is no use.
UNREACHED = "Unreached"
# That of one in whose answer nothing has come for as long as was allowed.
IDLE = "Idle"
_OF_JOBS = f"/apis/{names.GROUP}/"


def refusal(code: int, text: bytes, login: Login, path: str) -> ClusterError | LoginFailed:
    """Return the error that an answer with a status of 300 or more stands for."""
    try:
        status = json.loads(text)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        status, reason, message = {}, "", text[:400].decode(errors="replace")
    if code == 401:
        who = f"context {login.context}, user {login.user or '(none)'}"
        return LoginFailed(
            f"{login.server} does not accept the credentials of "
            f"{who if login.context else 'this pod'} (401)",
            "log in again with your provider's tool, or have the kubeconfig renewed",
        )
    if code == 404 and path.startswith(_OF_JOBS) and not (status.get("details") or {}).get("name"):
        return not_installed(code)  # a 404 about an object names it
    return cluster_error(code, reason, message)


def no_answer(error: Exception, login: Login) -> Unavailable | LoginFailed:
    """Return the error for a request without an answer, or with half of one."""
    from urllib3 import exceptions

    cause: BaseException = error
    while isinstance(cause, exceptions.MaxRetryError) and cause.reason is not None:
        cause = cause.reason
    root = cause
    while (before := root.__cause__ or root.__context__) is not None:
        root = before
    if isinstance(root, ssl.SSLCertVerificationError):
        return LoginFailed(
            f"no trust between this machine and {login.server}: {cause}",
            "is the cluster in the kubeconfig still the same one, and no proxy in between?",
        )
    unreached = isinstance(cause, (exceptions.NewConnectionError, exceptions.ConnectTimeoutError))
    idle = isinstance(cause, exceptions.ReadTimeoutError)
    word = UNREACHED if unreached else IDLE if idle else "NoAnswer"
    # The system's own words: the library wraps them in addresses of objects.
    text = getattr(root, "strerror", None) or str(root) or type(root).__name__
    found = Unavailable(0, word, f"no answer from {login.server}: {text}")
    found.advice = "is the cluster up, and this machine in its network (VPN, proxy)?"
    return found


def may_have_come(error: BaseException) -> bool:
    """Return whether a request that has ended so may have been carried out all the same."""
    if isinstance(error, Unavailable):
        return error.reason != UNREACHED and error.code != 429
    return not isinstance(error, DDPJobError)  # an interrupt


def not_installed(code: int) -> NotInstalled:
    """Return the error for a cluster without the definition of DDPJob."""
    kind = f"{names.PLURAL}.{names.GROUP}"
    error = NotInstalled(code, "NotFound", f"this cluster has no DDPJob API ({kind})")
    error.advice = "ask your admin to install ddpjob: helm install ddpjob … (docs/install.md)"
    return error
