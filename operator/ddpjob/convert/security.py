"""Fits a pod's security to that of a DDPJob: a user other than root, without capabilities."""

from typing import Any

from ddpjob.convert.fields import Notes
from ddpjob.json_depth import Body

_USER = "pods run as user and group 10001, not as the image's user; template can set another"
_ACCOUNT = "its token is not mounted unless automountServiceAccountToken is true"


def secure(pod: Body, trainer: Body, path: str, notes: Notes) -> None:
    """Change what contradicts the fields that ddpjob sets, and note what is different."""
    contexts = [_context(pod)]
    for kind in ("containers", "initContainers"):
        contexts += [_context(container) for container in pod.get(kind) or []]
    for context in contexts:
        _as_root(context, path, notes)
        _with_privileges(context)
    if _context(pod).get("runAsUser") is None and _context(trainer).get("runAsUser") is None:
        where = f"{path}.securityContext.runAsUser"
        notes.changed(where, f"absent: {_USER}")
    if pod.get("serviceAccountName") and pod.get("automountServiceAccountToken") is None:
        notes.changed(f"{path}.serviceAccountName", f"carried over in template, but {_ACCOUNT}")


def _context(part: Body) -> Body:
    found: Any = part.get("securityContext")
    return found if isinstance(found, dict) else {}


def _as_root(context: Body, path: str, notes: Notes) -> None:
    """Let a context that names root have root, which ddpjob's runAsNonRoot would refuse."""
    if context.get("runAsUser") == 0 and "runAsNonRoot" not in context:
        context["runAsNonRoot"] = False
        reason = "runAsNonRoot: false is added; the namespace must allow root"
        notes.changed(f"{path}.securityContext.runAsUser", f"0: {reason}")


def _with_privileges(context: Body) -> None:
    """Add the field without which the API server refuses these, because ddpjob sets it to false."""
    capabilities = context.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, dict) else None
    is_admin = isinstance(added, list) and bool(
        {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(map(str, added))
    )
    if context.get("privileged") is True or is_admin:
        context.setdefault("allowPrivilegeEscalation", True)
