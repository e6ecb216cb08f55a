"""The allow-list: the fields and values that an installation lets jobs ask of their pods.

The operator creates pods for everybody who may create a DDPJob, so a field that reaches beyond the
pod is refused unless the installation allows it. Pod Security admission of the namespace applies
as well.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

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


class Policy(Model):
    """The allow-list of an installation. In a list of names `*` stands for all names."""

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


def refusals(pod: Body, policy: Policy) -> list[InvalidJob]:
    """Return an InvalidJob for each field of `pod` that `policy` does not allow.

    Paths are those of the pod, below `spec.template`.
    """
    spec = pod["spec"]
    return [
        *_annotations(pod.get("metadata") or {}, policy),
        *_pod_fields(spec, policy),
        *_service_account(spec, policy),
        *_volumes(spec, policy),
        *(
            problem
            for kind in ("containers", "initContainers")
            for container in spec.get(kind) or []
            for problem in _container(container, f"spec.{kind}{called(container['name'])}", policy)
        ),
    ]


def _refuse(path: str, value: Any, setting: str) -> InvalidJob:
    rule = f"{show(value)} {NOT_ALLOWED} (policy.{setting})"
    return InvalidJob(f"spec.template.{path}", rule, value)


def _allowed(value: str, names: list[str]) -> bool:
    return "*" in names or value in names


def _annotations(metadata: Body, policy: Policy) -> Iterator[InvalidJob]:
    for name, value in (metadata.get("annotations") or {}).items():
        if name.startswith(_APPARMOR) and value == "unconfined" and not policy.privileged:
            yield _refuse(f"metadata.annotations{called(name)}", value, "privileged")


def _pod_fields(spec: Body, policy: Policy) -> Iterator[InvalidJob]:
    switches = {
        "hostNetwork": policy.host_network,
        "hostPID": policy.host_pid,
        "hostIPC": policy.host_ipc,
        "nodeName": policy.node_name,
    }
    for name, allowed in switches.items():
        if spec.get(name) and not allowed:
            yield _refuse(f"spec.{name}", spec[name], name)
    named = {
        "priorityClassName": (policy.priority_class_names, "priorityClassNames"),
        "runtimeClassName": (policy.runtime_class_names, "runtimeClassNames"),
    }
    for name, (names, setting) in named.items():
        value = spec.get(name)
        # Kubernetes' own system- classes outrank everything else on the node.
        if value and not _allowed(value, [n for n in names if n != "*" or "system-" not in value]):
            yield _refuse(f"spec.{name}", value, setting)
    if spec.get("hostUsers") and not policy.privileged:
        yield _refuse("spec.hostUsers", True, "privileged")
    context = spec.get("securityContext") or {}
    yield from _confinement(context, "spec.securityContext", policy)
    if context.get("sysctls") and not policy.privileged:
        yield _refuse("spec.securityContext.sysctls", context["sysctls"], "privileged")


def _service_account(spec: Body, policy: Policy) -> Iterator[InvalidJob]:
    names = policy.service_account_names
    for field in ("serviceAccountName", "serviceAccount"):
        account = spec.get(field)
        if account and account != "default" and not _allowed(account, names):
            yield _refuse(f"spec.{field}", account, "serviceAccountNames")
    account = spec.get("serviceAccountName") or "default"
    if spec.get("automountServiceAccountToken") and not _allowed(account, names):
        yield _refuse("spec.automountServiceAccountToken", True, "serviceAccountNames")


def _volumes(spec: Body, policy: Policy) -> Iterator[InvalidJob]:
    account = spec.get("serviceAccountName") or "default"
    for volume in spec.get("volumes") or []:
        path = f"spec.volumes{called(volume['name'])}"
        for source in volume:
            if source != "name" and not _allowed(source, policy.volume_types):
                yield _refuse(path, source, "volumeTypes")
        for projection in (volume.get("projected") or {}).get("sources") or []:
            for source in projection:
                personal = source not in _IMPERSONAL
                if personal and not _allowed(account, policy.service_account_names):
                    yield _refuse(f"{path}.projected", source, "serviceAccountNames")


def _container(container: Body, path: str, policy: Policy) -> Iterator[InvalidJob]:
    context = container.get("securityContext") or {}
    yield from _confinement(context, f"{path}.securityContext", policy)
    for name in ("privileged", "allowPrivilegeEscalation"):
        if context.get(name) and not policy.privileged:
            yield _refuse(f"{path}.securityContext.{name}", True, "privileged")
    if context.get("procMount", "Default") != "Default" and not policy.privileged:
        yield _refuse(f"{path}.securityContext.procMount", context["procMount"], "privileged")
    capabilities = context.get("capabilities") or {}
    for capability in capabilities.get("add") or []:
        if not _allowed(capability, policy.capabilities):
            yield _refuse(f"{path}.securityContext.capabilities.add", capability, "capabilities")
    dropped = capabilities.get("drop") or []
    if "ALL" not in dropped and not policy.privileged and "*" not in policy.capabilities:
        yield _refuse(f"{path}.securityContext.capabilities.drop", dropped, "capabilities")
    yield from _probes(container, path, policy)
    for port in container.get("ports") or []:
        if port.get("hostPort") and not policy.host_ports:
            yield _refuse(f"{path}.ports", port["hostPort"], "hostPorts")


def _probes(container: Body, path: str, policy: Policy) -> Iterator[InvalidJob]:
    """Yield the probes and hooks that name a host: their requests bypass all NetworkPolicies."""
    handlers = {**container, **(container.get("lifecycle") or {})}
    for name in _PROBES:
        for action in ("httpGet", "tcpSocket"):
            host = ((handlers.get(name) or {}).get(action) or {}).get("host")
            if host and not policy.host_network:
                yield _refuse(f"{path}.{name}.{action}.host", host, "hostNetwork")


def _confinement(context: Body, path: str, policy: Policy) -> Iterator[InvalidJob]:
    for name in ("seccompProfile", "appArmorProfile"):
        if (context.get(name) or {}).get("type") == "Unconfined" and not policy.privileged:
            yield _refuse(f"{path}.{name}", "Unconfined", "privileged")
    if (context.get("windowsOptions") or {}).get("hostProcess") and not policy.privileged:
        yield _refuse(f"{path}.windowsOptions.hostProcess", True, "privileged")
    if context.get("seLinuxOptions") and not policy.privileged:
        yield _refuse(f"{path}.seLinuxOptions", context["seLinuxOptions"], "privileged")
