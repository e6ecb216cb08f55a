"""The models of the parts of a pod that `spec` has itself, closed and bounded.

Everything else of a pod goes through `template`. This file is longer than 400 lines because it is a
list: one small model for each part of a pod, in the order of Kubernetes' reference.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ddpjob import names
from ddpjob.api.base import (
    CIDR,
    ENV_NAME,
    FILE_PATH,
    MOUNT_PATH,
    AbsolutePath,
    DnsLabel,
    DnsSubdomain,
    Model,
    Quantity,
    Rule,
    Short,
    Text,
    exactly_one_of,
    keeps,
    not_both,
    unique,
)


def _has_no(dots: str) -> Rule:
    return Rule(
        f"!self.matches('{dots}')",
        lambda path: not re.search(dots, path),
        "must not have . or .. between slashes",
    )


# The path at which a container sees a volume. Each path has one spelling, so that two can be
# compared.
MountPath = Annotated[
    str,
    Field(max_length=512, pattern=MOUNT_PATH),
    keeps(
        Rule(
            "self != '/ddpjob' && !self.startsWith('/ddpjob/')",
            lambda path: not f"{path}/".startswith("/ddpjob/"),
            "/ddpjob and what is below it are reserved",
        ),
        _has_no("/[.]{1,2}(/|$)"),
    ),
]
# The path of a file in a volume.
FilePath = Annotated[
    str, Field(max_length=512, pattern=FILE_PATH), keeps(_has_no("(^|/)[.]{1,2}(/|$)"))
]

FileMode = Annotated[int, Field(ge=0, le=0o777)]


class LocalReference(Model):
    """A reference names an object of the same namespace."""

    name: DnsSubdomain


class EnvFromReference(LocalReference):
    """All keys of a ConfigMap or Secret of the same namespace become variables."""

    optional: bool | None = None


class KeyReference(EnvFromReference):
    """The value is one key of a ConfigMap or Secret of the same namespace."""

    key: Annotated[str, Field(min_length=1, max_length=253)]


class FieldReference(Model):
    """The value is a field of the pod, such as `status.hostIP`."""

    api_version: Short | None = None
    field_path: Annotated[str, Field(min_length=1, max_length=512)]


class ResourceFieldReference(Model):
    """The value is a limit or request of a container, such as `limits.memory`."""

    container_name: DnsLabel | None = None
    resource: Annotated[str, Field(min_length=1, max_length=253)]
    divisor: Quantity | None = None


class EnvSource(Model):
    """The variable's value comes from exactly one of these sources."""

    field_ref: FieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    checks = (exactly_one_of("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"),)


def is_reserved(name: str) -> bool:
    """Return whether the operator sets this environment variable itself."""
    is_reserved = name in names.RESERVED_ENV or name.startswith(names.RESERVED_ENV_PREFIXES)
    return is_reserved and name != names.SAVE_ON_NOTICE


_RESERVED_CEL = f"self.name == '{names.SAVE_ON_NOTICE}' || " + " && ".join(
    [f"!(self.name in [{', '.join(repr(name) for name in names.RESERVED_ENV)}])"]
    + [f"!self.name.startsWith('{prefix}')" for prefix in names.RESERVED_ENV_PREFIXES]
)


class EnvVar(Model):
    """An entry is one environment variable, as in a pod."""

    name: Annotated[str, Field(max_length=253, pattern=ENV_NAME)]
    value: Text | None = None
    value_from: EnvSource | None = None
    checks = (
        not_both("value", "valueFrom"),
        Rule(
            _RESERVED_CEL,
            lambda self: not is_reserved(self.name),
            f"is set by ddpjob: {', '.join(names.RESERVED_ENV)} and all names that begin with "
            f"{' or '.join(names.RESERVED_ENV_PREFIXES)} are reserved",
            "name",
        ),
    )


class EnvFrom(Model):
    """The variables come from exactly one ConfigMap or Secret."""

    prefix: Short | None = None
    config_map_ref: EnvFromReference | None = None
    secret_ref: EnvFromReference | None = None
    checks = (exactly_one_of("configMapRef", "secretRef"),)


class ResourceClaim(Model):
    """An entry names a claim of `template.spec.resourceClaims` (dynamic resource allocation)."""

    name: DnsLabel
    request: DnsLabel | None = None


class Resources(Model):
    """`resources` are the requests and limits of one pod's trainer container."""

    limits: Annotated[dict[str, Quantity], Field(max_length=32)] | None = None
    """`limits` are the most that the container may use, such as `{nvidia.com/gpu: 8}`."""
    requests: Annotated[dict[str, Quantity], Field(max_length=32)] | None = None
    """`requests` are the amounts that the scheduler reserves. By default they are the limits."""
    claims: Annotated[list[ResourceClaim], Field(max_length=16), unique("name")] | None = None
    """`claims` are the resource claims that the container uses."""


class KeyToPath(Model):
    """One key of a ConfigMap or Secret becomes the file `path`."""

    key: Annotated[str, Field(min_length=1, max_length=253)]
    path: Annotated[str, Field(min_length=1, max_length=512)]
    mode: FileMode | None = None


Items = Annotated[list[KeyToPath], Field(max_length=128)]


class EmptyDir(Model):
    """The volume is an empty folder that is deleted with the pod."""

    medium: Literal["", "Memory", "HugePages"] | None = None
    size_limit: Quantity | None = None


class ProjectedConfigMap(EnvFromReference):
    """Keys of a ConfigMap or Secret become files of the projected volume."""

    items: Items | None = None


class ConfigMapSource(ProjectedConfigMap):
    """The keys of a ConfigMap become files."""

    default_mode: FileMode | None = None


class SecretSource(Model):
    """The keys of a Secret become files."""

    secret_name: DnsSubdomain
    items: Items | None = None
    default_mode: FileMode | None = None
    optional: bool | None = None


class ClaimSource(Model):
    """The volume is a PersistentVolumeClaim of the same namespace."""

    claim_name: DnsSubdomain
    read_only: bool | None = None


class DownwardFile(Model):
    """The file `path` holds a field of the pod."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None
    mode: FileMode | None = None


class ProjectedDownward(Model):
    """Fields of the pod become files of the projected volume."""

    items: Annotated[list[DownwardFile], Field(max_length=64)] | None = None


class DownwardSource(ProjectedDownward):
    """Fields of the pod become files."""

    default_mode: FileMode | None = None


class ProjectedToken(Model):
    """A token of the pod's service account becomes the file `path`.

    The installation must allow the service account.
    """

    audience: Short | None = None
    expiration_seconds: Annotated[int, Field(ge=600, le=4294967296)] | None = None
    path: Annotated[str, Field(min_length=1, max_length=512)]


class Projection(Model):
    """An entry is one source of the projected volume."""

    config_map: ProjectedConfigMap | None = None
    secret: ProjectedConfigMap | None = None
    downward_api: Annotated[ProjectedDownward | None, Field(alias="downwardAPI")] = None
    service_account_token: ProjectedToken | None = None


class ProjectedSource(Model):
    """Several sources become the files of one folder."""

    sources: Annotated[list[Projection], Field(max_length=16)] | None = None
    default_mode: FileMode | None = None


class CsiSource(Model):
    """The volume is an inline volume of a CSI driver."""

    driver: Annotated[str, Field(min_length=1, max_length=63)]
    fs_type: Short | None = None
    read_only: bool | None = None
    volume_attributes: Annotated[dict[str, Text], Field(max_length=64)] | None = None
    node_publish_secret_ref: LocalReference | None = None


class ClaimResources(Model):
    """The claim asks for the amount of storage in `requests`."""

    requests: Annotated[dict[str, Quantity], Field(max_length=8)]
    limits: Annotated[dict[str, Quantity], Field(max_length=8)] | None = None


class ClaimSpec(Model):
    """A PersistentVolumeClaim with this spec is created for each pod."""

    access_modes: Annotated[
        list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]],
        Field(min_length=1, max_length=4),
    ]
    storage_class_name: Short | None = None
    volume_mode: Literal["Filesystem", "Block"] | None = None
    resources: ClaimResources


class ClaimMetadata(Model):
    """The claim that is created for each pod has these labels and annotations."""

    labels: Annotated[dict[str, Short], Field(max_length=32)] | None = None
    annotations: Annotated[dict[str, Text], Field(max_length=32)] | None = None


class ClaimTemplate(Model):
    """A PersistentVolumeClaim is created for each pod, and deleted with it."""

    metadata: ClaimMetadata | None = None
    spec: ClaimSpec


class EphemeralSource(Model):
    """The volume is created from a storage class, and deleted with the pod."""

    volume_claim_template: ClaimTemplate


class ImageSource(Model):
    """The volume has the files of an OCI image. It is read-only."""

    reference: Annotated[str, Field(min_length=1, max_length=1024)]
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


class NfsSource(Model):
    """The volume is an NFS export. The installation must allow the volume type `nfs`."""

    server: Annotated[str, Field(min_length=1, max_length=253)]
    path: AbsolutePath
    read_only: bool | None = None


class HostPathSource(Model):
    """The volume is a path of the node. The installation must allow the volume type `hostPath`."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    type: Short | None = None


# Those that pods under Pod Security `restricted` may have.
RESTRICTED_SOURCES = (
    *("emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected", "downwardAPI"),
    *("csi", "ephemeral", "image"),
)


class VolumeSource(Model):
    """A volume has exactly one of these sources, as in a pod."""

    empty_dir: EmptyDir | None = None
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    projected: ProjectedSource | None = None
    downward_api: Annotated[DownwardSource | None, Field(alias="downwardAPI")] = None
    csi: CsiSource | None = None
    ephemeral: EphemeralSource | None = None
    image: ImageSource | None = None
    nfs: NfsSource | None = None
    host_path: HostPathSource | None = None
    checks: ClassVar[tuple[Rule, ...]] = (exactly_one_of(*RESTRICTED_SOURCES, "nfs", "hostPath"),)


class Volume(VolumeSource):
    """A volume is mounted by its name in `volumeMounts`."""

    name: DnsLabel
    checks = (
        *VolumeSource.checks,
        Rule(
            "!self.name.startsWith('ddpjob-')",
            lambda self: not self.name.startswith("ddpjob-"),
            "names that begin with ddpjob- are reserved",
            "name",
        ),
    )


class VolumeMount(Model):
    """The trainer container sees the volume `name` at `mountPath`."""

    name: DnsLabel
    mount_path: MountPath
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    sub_path_expr: Annotated[str, Field(max_length=512)] | None = None
    read_only: bool | None = None
    mount_propagation: Literal["None", "HostToContainer"] | None = None
    checks = (not_both("subPath", "subPathExpr"),)


_Networks = Annotated[
    list[Annotated[str, Field(max_length=64, pattern=CIDR)]], Field(max_length=32)
]


class IPBlock(Model):
    """Traffic may go to the addresses of a network."""

    cidr: Annotated[str, Field(max_length=64, pattern=CIDR)]
    """`cidr` is the network, such as 10.0.0.0/8."""
    excluded: Annotated[_Networks | None, Field(alias="except")] = None
    """`except` are networks within `cidr` that are left out."""


class LabelSelector(Model):
    """The selector fits objects that have all labels of `matchLabels`."""

    match_labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)
    ] = {}
    """`matchLabels` are the labels that an object must have. Without labels every object fits."""


class NetworkPeer(Model):
    """A peer is a network, or pods that are selected by labels of pods and of namespaces."""

    ip_block: IPBlock | None = None
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None
    checks = (
        Rule(
            "has(self.ipBlock) != (has(self.namespaceSelector) || has(self.podSelector))",
            lambda self: (
                (self.ip_block is not None)
                != (self.namespace_selector is not None or self.pod_selector is not None)
            ),
            "must have ipBlock, or one or both of namespaceSelector and podSelector",
        ),
    )


class NetworkPort(Model):
    """An entry is one port, or all ports from `port` to `endPort`."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """`protocol` is the protocol of the ports."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """`port` is the port, or the first port of a range."""
    end_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """`endPort` is the last port of a range. By default there is no range."""
    checks = (
        Rule(
            "!has(self.endPort) || self.endPort >= self.port",
            lambda self: self.end_port is None or self.end_port >= self.port,
            "must be at least port",
            "endPort",
        ),
    )


class EgressRule(Model):
    """A rule lets traffic out to each of `to` on each of `ports`, as in a NetworkPolicy."""

    to: Annotated[list[NetworkPeer], Field(min_length=1, max_length=32)] | None = None
    """`to` are the peers that traffic may go to. If it is absent, the rule allows all peers."""
    ports: Annotated[list[NetworkPort], Field(min_length=1, max_length=32)] | None = None
    """`ports` are the ports that traffic may go to. If it is absent, the rule allows all ports."""
