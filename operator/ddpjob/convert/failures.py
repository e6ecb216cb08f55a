"""Turns restart policies and limits of restarts into `spec.failurePolicy`."""

from ddpjob.convert.fields import Fields, Notes
from ddpjob.json_depth import Body

MOST = 1000
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
# The exit codes after which `ExitCode` restarts nothing. A rule has at most 64 of them.
_PERMANENT = (range(1, 65), range(65, 128))


def read_restart_policy(source: Fields) -> str | None:
    """Take the restart policy of replicas, or None if it is absent. Raises InvalidJob."""
    policy = source.take("restartPolicy", str)
    if policy is not None and policy not in RESTART_POLICIES:
        rule = f"must be one of {', '.join(RESTART_POLICIES)}"
        raise source.error("restartPolicy", rule, policy)
    return policy


def failure_policy(policy: str, limit: int | None, path: str, notes: Notes) -> Body:
    """Return the value of `spec.failurePolicy`; empty if the default fits.

    `policy` is the restart policy at `path`, and `limit` the number of restarts, None without one.
    """
    if policy == "Never" and limit is None:
        reason = "after a failure the job fails; a pod that was deleted or lost is still replaced"
        notes.changed(path, f"Never: {reason}")
        return {"maxRestarts": 0}
    found: Body = {} if limit is None else {"maxRestarts": capped(limit, path, notes)}
    if policy == "ExitCode":
        reason = "the exit code that counts is that of the worker, not that of its launcher"
        notes.changed(path, f"ExitCode: rules of failurePolicy; {reason}")
        found["rules"] = [{"onExitCodes": list(codes), "action": "FailJob"} for codes in _PERMANENT]
    if policy == "Always":
        notes.lost(path, "Always: a rank that has ended well is not started again")
    if limit is None:
        reason = "the whole group restarts, not one container, at most 3 times without progress"
        notes.changed(path, f"{policy}: {reason} (failurePolicy.maxRestarts)")
    return found


def capped(limit: int, path: str, notes: Notes) -> int:
    """Return the number of restarts that a DDPJob can have."""
    if limit > MOST:
        notes.changed(path, f"{limit} restarts: a DDPJob has at most {MOST}")
    return min(limit, MOST)
