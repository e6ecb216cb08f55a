"""The model of what Kueue has admitted a job with."""

from typing import Annotated

from pydantic import Field

from ddpjob.api.base import DnsSubdomain, Model, unique
from ddpjob.api.values import Count, Message, Name, ShortName

Texts = Annotated[dict[Name, Message], Field(max_length=64)]


class Toleration(Model):
    """A toleration lets a pod onto nodes with a taint, as in a pod."""

    key: Name | None = None
    """`key` is the taint's key. If it is absent, all keys fit."""
    operator: ShortName | None = None
    """`operator` is Equal or Exists."""
    value: Name | None = None
    """`value` is the taint's value."""
    effect: ShortName | None = None
    """`effect` is the taint's effect. If it is absent, all effects fit."""
    toleration_seconds: Count | None = None
    """`tolerationSeconds` is the time in seconds for which the pod stays after a taint with effect
    NoExecute."""


class PodSetAdmission(Model):
    """An entry is what Kueue asks of some of the pods."""

    name: ShortName
    """`name` is `main` for all pods, or else `first` for that of rank 0, or `others`."""
    labels: Texts = {}
    """`labels` are labels that each of these pods has besides its own."""
    annotations: Texts = {}
    """`annotations` are annotations that each of these pods has besides its own."""
    node_selector: Texts = {}
    """`nodeSelector` is what each of these pods asks of its node, as in a pod."""
    tolerations: Annotated[list[Toleration], Field(max_length=64)] = []
    """`tolerations` are tolerations that each of these pods has besides its own."""
    gated: bool = False
    """`gated` is true if Kueue chooses each pod's place in its topology."""


class Admission(Model):
    """`admission` is what Kueue has admitted the job with."""

    workload: DnsSubdomain
    """`workload` is the name of the job's Workload."""
    uid: ShortName
    """`uid` is the Workload's uid."""
    cluster_queue: DnsSubdomain
    """`clusterQueue` is the name of the ClusterQueue whose quota the job has."""
    pod_sets: Annotated[list[PodSetAdmission], Field(max_length=2), unique("name")] = []
    """`podSets` has what Kueue asks of the pods."""
