"""Reads one container of another operator's pod, without the command of the trainer."""

from typing import Any

from ddpjob.api.podtypes import is_reserved
from ddpjob.convert.fields import Fields
from ddpjob.json_depth import Body

_OWN_FIELDS = (
    *("restartPolicy", "restartPolicyRules"),
    *("terminationMessagePath", "terminationMessagePolicy"),
)


def read_trainer(container: Fields, port_name: str) -> tuple[Body, int | None]:
    """Return the trainer's container, and the port at which the ranks meet, or None.

    Its command and args must have been taken before.
    """
    ports, port = _ports(container, port_name)
    container.leave_out("ddpjob restarts the ranks and keeps their last words", _OWN_FIELDS)
    variables = []
    for variable in container.parts("env"):
        if is_reserved(name := variable.need("name", str)):
            variable.rest()
            container.notes.lost(f"{container.where('env')}[{name}]", "is set by ddpjob")
        else:
            variables.append(variable)
    found = _common(container, variables)
    return found | ({"ports": ports} if ports else {}), port


def read_other(container: Fields) -> Body:
    """Return a sidecar or an init container."""
    container.need("name", str)
    return _common(container, container.parts("env"))


def _common(container: Fields, variables: list[Fields]) -> Body:
    found: Body = {}
    if env := _env(container, variables):
        found["env"] = env
    if resources := _resources(container.part("resources")):
        found["resources"] = resources
    mounts = []
    for path, mount in container.named("volumeMounts", "mountPath").items():
        mount.need("name", str)
        mounts.append({**mount.rest(), "mountPath": path.rstrip("/") or "/"})
    if mounts:
        found["volumeMounts"] = mounts
    return {**container.rest(), **found}


def _env(container: Fields, variables: list[Fields]) -> list[Body]:
    """Return each variable once: of several with one name, a pod has the last."""
    found: dict[str, Body] = {}
    for variable in variables:
        name = variable.need("name", str)
        if name in found:
            container.notes.changed(variable.path, "stands twice, and the last one counts")
            del found[name]
        found[name] = variable.rest()
    return list(found.values())


def _ports(container: Fields, port_name: str) -> tuple[list[Body], int | None]:
    """Return the container's ports, each number once, and the port of that name, or None."""
    ports: dict[int, Body] = {}
    port = None
    for item in container.parts("ports", "containerPort"):
        number = item.need("containerPort", int)
        found = item.rest()
        if port_name and found.get("name") == port_name:
            port = number
        elif number in ports:
            container.notes.lost(item.path, f"{number}: stands twice")
        else:
            ports[number] = found
    return list(ports.values()), port


def _resources(resources: Fields) -> Body:
    """Return the resources, whose amounts may be numbers such as 0.5."""
    found: Body = {}
    for name in ("limits", "requests"):
        amounts = resources.part(name).rest()
        if amounts:
            found[name] = {key: _quantity(amount) for key, amount in amounts.items()}
    return {**resources.rest(), **found}


def _quantity(amount: Any) -> Any:
    return repr(amount) if isinstance(amount, float) else amount
