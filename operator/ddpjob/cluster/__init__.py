"""What the controller asks of a cluster, real (`kube`) or in this process (`local`).

The same verbs, the same errors.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ddpjob import keys

Body = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind of namespaced object and where the API server keeps it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """URL path of the collection, of one object, or of its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", namespace] if namespace else [root]
        return "/".join([*parts, self.plural, *(p for p in (name, subresource) if p)])


DDPJOBS = Resource(keys.GROUP, keys.VERSION, keys.PLURAL, keys.KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


@dataclass(frozen=True)
class Listing:
    """All objects of a kind at one resource version, from which a watch can go on."""

    items: list[Body]
    resource_version: str


@dataclass(frozen=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED, or BOOKMARK (which carries a resource version and nothing else)."""

    type: str
    object: Body


class Cluster(Protocol):
    """The verbs. All raise `errors.ClusterError`; a namespace of None means all namespaces."""

    async def create(
        self, resource: Resource, namespace: str, body: bytes | Mapping[str, Any]
    ) -> Body:
        """POST; the stored object. Raises AlreadyExists where the name is taken."""
        ...

    async def get(self, resource: Resource, namespace: str, name: str) -> Body:
        """GET one object."""
        ...

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
    ) -> Body | None:
        """DELETE with a uid precondition.

        The object as it lives on until its grace period ends, or None if it is gone at once. Raises
        NotFound, or Conflict where another object has taken the name.
        """
        ...

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]
    ) -> Body:
        """JSON merge patch; Conflict unless `body.metadata.uid` is the stored one."""
        ...

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        """PUT; Conflict unless `body.metadata.resourceVersion` is the stored one."""
        ...

    async def update_status(
        self, resource: Resource, namespace: str, body: Mapping[str, Any]
    ) -> Body:
        """PUT on /status; Conflict unless `body.metadata.resourceVersion` is the stored one."""
        ...

    async def list(self, resource: Resource, *, namespace: str | None, labels: str = "") -> Listing:
        """LIST, in as many chunks as it takes. `labels` is a label selector."""
        ...

    def watch(
        self, resource: Resource, *, namespace: str | None, labels: str = "", resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, bookmarks included, until the server ends the stream.

        Raises Expired where history no longer reaches back so far.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
