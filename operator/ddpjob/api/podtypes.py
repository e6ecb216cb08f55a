"""The parts of a pod that a DDPJob names directly, closed and bounded.

Everything else of a pod goes through `template`.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from ddpjob import names
from ddpjob.api.base import (
    CIDR,
    ENV_NAME,
    MOUNT_PATH,
    AbsolutePath,
    DnsLabel,
    DnsSubdomain,
    Model,
    Quantity,
    Rule,
    Short,
    Text,
    broken_rules,
    unique,
)

_OWN_PATHS = "/ddpjob and what is below it are reserved"
_DOTS = "/[.]{1,2}(/|$)"
_NO_DOTS = "must not have . or .. between slashes"


def _mount_path(path: str) -> str:
    broken = []
    if path == "/ddpjob" or path.startswith("/ddpjob/"):
        broken.append((_OWN_PATHS, ""))
    if re.search(_DOTS, path + "/"):
        broken.append((_NO_DOTS, ""))
    if broken:
        raise broken_rules(*broken)
    return path


MountPath = Annotated[
    str,
    Field(max_length=512, pattern=MOUNT_PATH),
    AfterValidator(_mount_path),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 512,
            "pattern": MOUNT_PATH,
            "x-kubernetes-validations": [
                {
                    "rule": "self != '/ddpjob' && !self.startsWith('/ddpjob/')",
                    "message": _OWN_PATHS,
                },
                {"rule": f"!self.matches('{_DOTS}')", "message": _NO_DOTS},
            ],
        }
    ),
]
"""Where a container sees a volume: one spelling of each path, so that two can be compared."""

FileMode = Annotated[int, Field(ge=0, le=0o777)]


class LocalReference(Model):
    """An object of the same namespace."""

    name: DnsSubdomain


class KeyReference(Model):
    """One key of a ConfigMap or Secret of the same namespace."""

    name: DnsSubdomain
    key: Annotated[str, Field(min_length=1, max_length=253)]
    optional: bool | None = None


class FieldReference(Model):
    """A field of the pod, such as `status.hostIP`."""

    api_version: Short | None = None
    field_path: Annotated[str, Field(min_length=1, max_length=512)]


class ResourceFieldReference(Model):
    """A limit or request of a container, such as `limits.memory`."""

    container_name: DnsLabel | None = None
    resource: Annotated[str, Field(min_length=1, max_length=253)]
    divisor: Quantity | None = None


def _one_of(*fields: str) -> str:
    """CEL: exactly one of these fields is set."""
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(x, x).size() == 1"


class EnvSource(Model):
    """Where a variable's value comes from: exactly one of these."""

    field_ref: FieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _one_of("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"),
            lambda self: len(self.model_fields_set) == 1,
            "must set exactly one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef",
        ),
    )


def is_reserved(name: str) -> bool:
    """Whether the operator sets this environment variable itself."""
    return name in names.RESERVED_ENV or name.startswith(names.RESERVED_ENV_PREFIXES)


_RESERVED_CEL = " && ".join(
    [f"!(self.name in [{', '.join(repr(name) for name in names.RESERVED_ENV)}])"]
    + [f"!self.name.startsWith('{prefix}')" for prefix in names.RESERVED_ENV_PREFIXES]
)


class EnvVar(Model):
    """One environment variable, as in a pod."""

    name: Annotated[str, Field(max_length=253, pattern=ENV_NAME)]
    value: Text | None = None
    value_from: EnvSource | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            lambda self: self.value is None or self.value_from is None,
            "value and valueFrom exclude each other",
        ),
        Rule(
            _RESERVED_CEL,
            lambda self: not is_reserved(self.name),
            f"is set by ddpjob: {', '.join(names.RESERVED_ENV)} and all names that begin with "
            f"{' or '.join(names.RESERVED_ENV_PREFIXES)} are reserved",
            "name",
        ),
    )


class EnvFromReference(Model):
    """A ConfigMap or Secret of the same namespace, all of whose keys become variables."""

    name: DnsSubdomain
    optional: bool | None = None


class EnvFrom(Model):
    """Variables from a ConfigMap or a Secret: exactly one of them."""

    prefix: Short | None = None
    config_map_ref: EnvFromReference | None = None
    secret_ref: EnvFromReference | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _one_of("configMapRef", "secretRef"),
            lambda self: (self.config_map_ref is None) != (self.secret_ref is None),
            "must set exactly one of configMapRef, secretRef",
        ),
    )


class ResourceClaim(Model):
    """A claim of `template.spec.resourceClaims` (dynamic resource allocation)."""

    name: DnsLabel
    request: DnsLabel | None = None


class Resources(Model):
    """Requests and limits of one pod's trainer container."""

    limits: Annotated[dict[str, Quantity], Field(max_length=32)] | None = None
    requests: Annotated[dict[str, Quantity], Field(max_length=32)] | None = None
    claims: Annotated[list[ResourceClaim], Field(max_length=16), unique("name")] | None = None


class KeyToPath(Model):
    """One key of a ConfigMap or Secret and the file it becomes."""

    key: Annotated[str, Field(min_length=1, max_length=253)]
    path: Annotated[str, Field(min_length=1, max_length=512)]
    mode: FileMode | None = None


Items = Annotated[list[KeyToPath], Field(max_length=128)]


class EmptyDir(Model):
    """A folder that lives and dies with the pod."""

    medium: Literal["", "Memory", "HugePages"] | None = None
    size_limit: Quantity | None = None


class ConfigMapSource(Model):
    """Files from a ConfigMap."""

    name: DnsSubdomain
    items: Items | None = None
    default_mode: FileMode | None = None
    optional: bool | None = None


class SecretSource(Model):
    """Files from a Secret."""

    secret_name: DnsSubdomain
    items: Items | None = None
    default_mode: FileMode | None = None
    optional: bool | None = None


class ClaimSource(Model):
    """A PersistentVolumeClaim of the same namespace."""

    claim_name: DnsSubdomain
    read_only: bool | None = None


class DownwardFile(Model):
    """A file with a field of the pod in it."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None
    mode: FileMode | None = None


class DownwardSource(Model):
    """Files with fields of the pod in them."""

    items: Annotated[list[DownwardFile], Field(max_length=64)] | None = None
    default_mode: FileMode | None = None


class ProjectedConfigMap(Model):
    """Keys of a ConfigMap within a projected volume."""

    name: DnsSubdomain
    items: Items | None = None
    optional: bool | None = None


class ProjectedDownward(Model):
    """Fields of the pod within a projected volume."""

    items: Annotated[list[DownwardFile], Field(max_length=64)] | None = None


class ProjectedToken(Model):
    """A token of the pod's service account.

    Needs `serviceAccountToken` among the allowed volume types.
    """

    audience: Short | None = None
    expiration_seconds: Annotated[int, Field(ge=600, le=4294967296)] | None = None
    path: Annotated[str, Field(min_length=1, max_length=512)]


class Projection(Model):
    """One source of a projected volume."""

    config_map: ProjectedConfigMap | None = None
    secret: ProjectedConfigMap | None = None
    downward_api: Annotated[ProjectedDownward | None, Field(alias="downwardAPI")] = None
    service_account_token: ProjectedToken | None = None


class ProjectedSource(Model):
    """Several sources in one folder."""

    sources: Annotated[list[Projection], Field(max_length=16)] | None = None
    default_mode: FileMode | None = None


class CsiSource(Model):
    """An inline volume of a CSI driver."""

    driver: Annotated[str, Field(min_length=1, max_length=63)]
    fs_type: Short | None = None
    read_only: bool | None = None
    volume_attributes: Annotated[dict[str, Text], Field(max_length=64)] | None = None
    node_publish_secret_ref: LocalReference | None = None


class ClaimResources(Model):
    """What a claim asks for."""

    requests: Annotated[dict[str, Quantity], Field(max_length=8)]
    limits: Annotated[dict[str, Quantity], Field(max_length=8)] | None = None


class ClaimSpec(Model):
    """The claim that is made for each pod."""

    access_modes: Annotated[
        list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]],
        Field(min_length=1, max_length=4),
    ]
    storage_class_name: Short | None = None
    volume_mode: Literal["Filesystem", "Block"] | None = None
    resources: ClaimResources


class ClaimMetadata(Model):
    """Labels and annotations of the claim that is made for each pod."""

    labels: Annotated[dict[str, Short], Field(max_length=32)] | None = None
    annotations: Annotated[dict[str, Text], Field(max_length=32)] | None = None


class ClaimTemplate(Model):
    """A PersistentVolumeClaim that is made for each pod and goes with it."""

    metadata: ClaimMetadata | None = None
    spec: ClaimSpec


class EphemeralSource(Model):
    """A volume of a storage class that lives and dies with the pod."""

    volume_claim_template: ClaimTemplate


class ImageSource(Model):
    """The files of an OCI image, read-only."""

    reference: Annotated[str, Field(min_length=1, max_length=1024)]
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


class NfsSource(Model):
    """An NFS export; needs `nfs` among the allowed volume types."""

    server: Annotated[str, Field(min_length=1, max_length=253)]
    path: AbsolutePath
    read_only: bool | None = None


class HostPathSource(Model):
    """A folder of the node; needs `hostPath` among the allowed volume types."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    type: Short | None = None


VOLUME_SOURCES = [
    "emptyDir",
    "configMap",
    "secret",
    "persistentVolumeClaim",
    "projected",
    "downwardAPI",
    "csi",
    "ephemeral",
    "image",
    "nfs",
    "hostPath",
]


class VolumeSource(Model):
    """What a volume is made of: exactly one of these, as in a pod."""

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
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _one_of(*VOLUME_SOURCES),
            lambda self: len(self.model_fields_set - {"name"}) == 1,
            f"must set exactly one source: {', '.join(VOLUME_SOURCES)}",
        ),
    )


class Volume(VolumeSource):
    """A volume that `volumeMounts` can name."""

    name: DnsLabel
    checks: ClassVar[tuple[Rule, ...]] = (
        *VolumeSource.checks,
        Rule(
            "!self.name.startsWith('ddpjob-')",
            lambda self: not self.name.startswith("ddpjob-"),
            "names that begin with ddpjob- are reserved",
            "name",
        ),
    )


class VolumeMount(Model):
    """Where the trainer container sees a volume."""

    name: DnsLabel
    mount_path: MountPath
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    sub_path_expr: Annotated[str, Field(max_length=512)] | None = None
    read_only: bool | None = None
    mount_propagation: Literal["None", "HostToContainer"] | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.subPath) && has(self.subPathExpr))",
            lambda self: self.sub_path is None or self.sub_path_expr is None,
            "subPath and subPathExpr exclude each other",
        ),
    )


_Networks = Annotated[
    list[Annotated[str, Field(max_length=64, pattern=CIDR)]], Field(max_length=32)
]


class IPBlock(Model):
    """Addresses of a network."""

    cidr: Annotated[str, Field(max_length=64, pattern=CIDR)]
    excluded: Annotated[_Networks | None, Field(alias="except")] = None
    """Networks within it that are left out."""


class LabelSelector(Model):
    """All these labels; without any, everything."""

    match_labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)
    ] = {}


class NetworkPeer(Model):
    """Where traffic may go: a network, or pods by their labels and their namespaces' labels."""

    ip_block: IPBlock | None = None
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
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
    """A port, or all up to `endPort`."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    port: Annotated[int, Field(ge=1, le=65535)]
    end_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.endPort) || self.endPort >= self.port",
            lambda self: self.end_port is None or self.end_port >= self.port,
            "must be at least port",
            "endPort",
        ),
    )


class EgressRule(Model):
    """As in a NetworkPolicy: any of `to`, on any of `ports`; one that is absent means all."""

    to: Annotated[list[NetworkPeer], Field(min_length=1, max_length=32)] | None = None
    ports: Annotated[list[NetworkPort], Field(min_length=1, max_length=32)] | None = None
