"""What an HTTP answer of the API server means: the object in it, or an error that says why not."""

import json
import ssl
from dataclasses import dataclass
from typing import Any

from ddpjob import names
from ddpjob.client.login import Login
from ddpjob.cluster import Keep, kept
from ddpjob.errors import (
    ClusterError,
    DDPJobError,
    LoginFailed,
    NotInstalled,
    Unavailable,
    cluster_error,
)
from ddpjob.json_depth import Body, read_json

# The reason of an Unavailable if no connection was made, so that trying again at once is no use.
UNREACHED = "Unreached"
# That of one in whose answer nothing has come for as long as was allowed.
IDLE = "Idle"
_OF_JOBS = f"/apis/{names.GROUP}/"


def read_object(answer: Any, request: str) -> Body:
    """Return the object in an answer. Raises Unavailable if there is none."""
    return _object(answer.read(), request)


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    metadata: Body
    items: list[Any]
    """What was kept of the objects."""


def read_list(answer: Any, request: str, keep: Keep | None) -> Page:
    """Return what `keep` returns of each object of a list. Raises Unavailable if it is none."""
    page = _object(answer.read(), request)
    items, metadata = page.get("items"), page.get("metadata")
    if not isinstance(items, list) or not isinstance(metadata, dict):
        raise Unavailable(200, "Garbled", f"{request}: the answer is no list")
    return Page(metadata, kept(items, keep))


def _object(text: bytes, request: str) -> Body:
    try:
        found = read_json(text)
    except ValueError as error:
        raise Unavailable(200, "Garbled", f"{request}: the answer is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unavailable(200, "Garbled", f"{request}: the answer is no object")
    return found


def refusal(answer: Any, login: Login, path: str) -> ClusterError | LoginFailed:
    """Return the error that an answer with a status of 300 or more stands for."""
    text = answer.read()
    try:
        status = json.loads(text)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        status, reason = {}, str(answer.reason or "")
        message = text[:400].decode(errors="replace") or reason
    if answer.status == 401:
        return _unauthorized(login)
    if answer.status == 404 and path.startswith(_OF_JOBS) and _names_no_kind(status):
        return not_installed(answer.status)
    after = str(answer.headers.get("Retry-After", ""))
    pause = float(after) if after.isdecimal() else None
    return cluster_error(answer.status, reason, message, pause)


def no_answer(error: Exception, login: Login) -> Unavailable | LoginFailed:
    """Return the error for a request without an answer, or with half of one."""
    from urllib3 import exceptions

    cause: BaseException = error
    while isinstance(cause, exceptions.MaxRetryError) and cause.reason is not None:
        cause = cause.reason
    if isinstance(_root(cause), ssl.SSLCertVerificationError):
        return LoginFailed(
            f"no trust between this machine and {login.server}: {cause}",
            "is the cluster in the kubeconfig still the same one, and no proxy in between?",
        )
    unreached = isinstance(cause, (exceptions.NewConnectionError, exceptions.ConnectTimeoutError))
    idle = isinstance(cause, exceptions.ReadTimeoutError)
    word = UNREACHED if unreached else IDLE if idle else "NoAnswer"
    found = Unavailable(0, word, f"no answer from {login.server}: {_in_short(cause)}")
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


def _names_no_kind(status: Any) -> bool:
    """Return whether a 404 is about the kind: that about an object names it in `details`."""
    details = status.get("details") if isinstance(status, dict) else None
    return not (isinstance(details, dict) and details.get("name"))


def _unauthorized(login: Login) -> LoginFailed:
    who = f"context {login.context}, user {login.user or '(none)'}" if login.context else "this pod"
    again = f"with {login.plugin}'s provider" if login.plugin else "or have the kubeconfig renewed"
    return LoginFailed(
        f"{login.server} does not accept the credentials of {who} (401)", f"log in again {again}"
    )


def _in_short(error: BaseException) -> str:
    """Return the system's own words: the library wraps them in addresses of objects."""
    found = _root(error)
    if isinstance(found, OSError) and found.strerror:
        return found.strerror
    return str(found) or type(found).__name__


def _root(error: BaseException) -> BaseException:
    """Return the error with which it began."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
