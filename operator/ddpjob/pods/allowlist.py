"""The allow-list: the fields and values that an installation lets jobs ask of their pods.

The operator creates pods for everybody who may create a DDPJob, so a field that reaches beyond the
pod is refused unless the installation allows it. Pod Security admission of the namespace applies
as well.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from ddpjob.api.base import Model, called
from ddpjob.api.messages import explain, show
from ddpjob.api.podtypes import RESTRICTED_SOURCES
from ddpjob.errors import InvalidJob

Body = Mapping[str, Any]

# Sources of a projected volume that have nothing of the pod's identity. A token has it, and so has
# podCertificate, because the API server accepts it like a token.
_IMPERSONAL = ("configMap", "secret", "downwardAPI", "clusterTrustBundle")
NOT_ALLOWED = "is not allowed by this installation"
# Fields of a container that make its kubelet send requests, from the node's network.
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop")
# The prefix of annotations for AppArmor, from before there was a field.
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


class Gang(Model):
    """The scheduler of an installation that places all pods of an attempt, or none of them."""

    scheduler: Literal["none", "kubernetes", "volcano", "coscheduling"] = "none"
    """Whose PodGroups are made; `none` makes none."""
    scheduler_name: str = ""
    """`schedulerName` of the pods; if it is empty, the one that the scheduler has by default."""


class Policy(Model):
    """The allow-list of an installation. In a list of names `*` stands for all names."""

    gang: Gang = Gang()
    """Who places the pods of a job with more than one node."""

    service_account_names: list[str] = []
    """Service accounts that a job's pods may run as. Only their tokens and certificates may be
    mounted."""
    priority_class_names: list[str] = ["*"]
    """Priority classes that a job may name."""
    runtime_class_names: list[str] = ["*"]
    """Runtime classes that a job may name."""
    volume_types: list[str] = [*RESTRICTED_SOURCES]
    """Volume sources that a job may use. The default is those of Pod Security `restricted`."""
    capabilities: list[str] = []
    """Linux capabilities that a container may add, such as IPC_LOCK for RDMA. With `*` it may also
    keep the default capabilities of the container runtime."""
    host_network: bool = False
    """Whether pods may use the node's network, and let its kubelet probe other hosts."""
    host_pid: Annotated[bool, Field(alias="hostPID")] = False
    """Whether pods may see the node's processes."""
    host_ipc: Annotated[bool, Field(alias="hostIPC")] = False
    """Whether pods may share the node's memory."""
    host_ports: bool = False
    """Whether containers may claim ports of the node."""
    node_name: bool = False
    """Whether a job may choose nodes by name, past the scheduler."""
    dns_ports: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=8)] = [
        53,
        5353,
    ]
    """Ports of the DNS pods (not of their Service), which pods may reach even if the job limits
    `networkPolicy.egress`. In OpenShift DNS pods listen on 5353."""
    agent_clients: list[dict[str, Any]] = []
    """NetworkPolicy peers that may read progress and metrics: the operator and monitoring."""
    privileged: bool = False
    """Whether containers may be privileged, unconfined, or tune the node's kernel."""


def parse_policy(content: bytes) -> Policy:
    """Return the allow-list that the chart writes as JSON.

    Raises ValueError with field, value and rule.
    """
    try:
        return Policy.model_validate_json(content)
    except ValidationError as error:
        raise ValueError("; ".join(map(str, explain(Policy, error)))) from None


class _Wish(NamedTuple):
    """A field of a pod, its value, and the setting that may allow it. None is no wish."""

    path: str
    value: Any
    setting: str
    name: str = ""
    """What the setting must name, if that is not the value."""


def refusals(pod: Body, policy: Policy) -> list[InvalidJob]:
    """Return an InvalidJob for each field of `pod` that `policy` does not allow.

    Paths are those of the pod, below `spec.template`.
    """
    settings = policy.to_json()
    return [
        InvalidJob(
            f"spec.template.{wish.path}",
            f"{show(wish.value)} {NOT_ALLOWED} (policy.{wish.setting})",
            wish.value,
        )
        for wish in _wishes(pod, policy)
        if wish.value is not None and not _allows(settings[wish.setting], wish)
    ]


def _allows(setting: bool | list[str], wish: _Wish) -> bool:
    if isinstance(setting, bool):
        return setting
    name = wish.name or wish.value
    # Kubernetes' own system- classes outrank everything else on the node.
    is_class = wish.setting in ("priorityClassNames", "runtimeClassNames")
    return name in setting or "*" in setting and not (is_class and "system-" in name)


def _wishes(pod: Body, policy: Policy) -> Iterator[_Wish]:
    for name, value in ((pod.get("metadata") or {}).get("annotations") or {}).items():
        if name.startswith(_APPARMOR) and value == "unconfined":
            yield _Wish(f"metadata.annotations{called(name)}", value, "privileged")
    spec = pod["spec"]
    yield from _of_pod(spec)
    yield from _of_volumes(spec)
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or []:
            path = f"spec.{kind}{called(container['name'])}"
            yield from _of_container(container, path, policy)


def _of_pod(spec: Body) -> Iterator[_Wish]:
    for field in ("hostNetwork", "hostPID", "hostIPC", "nodeName"):
        yield _Wish(f"spec.{field}", spec.get(field) or None, field)
    for field in ("priorityClassName", "runtimeClassName"):
        yield _Wish(f"spec.{field}", spec.get(field) or None, f"{field}s")
    for field in ("serviceAccountName", "serviceAccount"):
        if spec.get(field) != "default":
            yield _Wish(f"spec.{field}", spec.get(field) or None, "serviceAccountNames")
    if spec.get("automountServiceAccountToken"):
        field = "automountServiceAccountToken"
        yield _Wish(f"spec.{field}", True, "serviceAccountNames", _account(spec))
    yield _Wish("spec.hostUsers", spec.get("hostUsers") or None, "privileged")
    yield from _of_security(spec.get("securityContext") or {}, "spec.securityContext")


def _account(spec: Body) -> str:
    return spec.get("serviceAccountName") or "default"


def _of_volumes(spec: Body) -> Iterator[_Wish]:
    for volume in spec.get("volumes") or []:
        path = f"spec.volumes{called(volume['name'])}"
        for source in volume:
            if source != "name":
                yield _Wish(path, source, "volumeTypes")
        for projection in (volume.get("projected") or {}).get("sources") or []:
            for source in projection:
                if source not in _IMPERSONAL:
                    where = f"{path}.projected"
                    yield _Wish(where, source, "serviceAccountNames", _account(spec))


def _of_container(container: Body, path: str, policy: Policy) -> Iterator[_Wish]:
    context, where = container.get("securityContext") or {}, f"{path}.securityContext"
    yield from _of_security(context, where)
    capabilities = context.get("capabilities") or {}
    for capability in capabilities.get("add") or []:
        yield _Wish(f"{where}.capabilities.add", capability, "capabilities")
    dropped = capabilities.get("drop") or []
    if "ALL" not in dropped and not policy.privileged:
        yield _Wish(f"{where}.capabilities.drop", dropped, "capabilities", "*")
    # Probes and hooks that name a host: their requests bypass all NetworkPolicies.
    handlers = {**container, **(container.get("lifecycle") or {})}
    for name in _PROBES:
        for action in ("httpGet", "tcpSocket"):
            host = ((handlers.get(name) or {}).get(action) or {}).get("host") or None
            yield _Wish(f"{path}.{name}.{action}.host", host, "hostNetwork")
    for port in container.get("ports") or []:
        yield _Wish(f"{path}.ports", port.get("hostPort") or None, "hostPorts")


def _of_security(context: Body, path: str) -> Iterator[_Wish]:
    """Yield what the security context of a pod or of a container asks for."""
    for name in ("privileged", "allowPrivilegeEscalation", "seLinuxOptions", "sysctls"):
        yield _Wish(f"{path}.{name}", context.get(name) or None, "privileged")
    for name in ("seccompProfile", "appArmorProfile"):
        if (context.get(name) or {}).get("type") == "Unconfined":
            yield _Wish(f"{path}.{name}", "Unconfined", "privileged")
    if context.get("procMount", "Default") != "Default":
        yield _Wish(f"{path}.procMount", context["procMount"], "privileged")
    process = (context.get("windowsOptions") or {}).get("hostProcess") or None
    yield _Wish(f"{path}.windowsOptions.hostProcess", process, "privileged")
