"""What the controller asks of a cluster, real (`kube`) or in this process (`local`).

The same verbs, the same errors.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ddpjob import names
from ddpjob.errors import cluster_error
from ddpjob.json_depth import Body


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
        """URL path of the collection, of one object, or of its subresource.

        Raises Refused (400) for what is no name: `..` would lead elsewhere.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root] if namespace is None else [root, "namespaces", _name(namespace)]
        names = [] if name is None else [_name(name)]
        return "/".join([*parts, self.plural, *names, *([subresource] if subresource else [])])


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)  # nothing to be quoted in it


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise cluster_error(400, "BadRequest", f"{text[:80]!r} is no name of an object")
    return text


DDPJOBS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


Keep = Callable[[Body], Any]
"""What is kept of an object that is read: anything, or None if it is nothing of ours."""


@dataclass(frozen=True)
class Listing:
    """All objects of a kind at one resource version, from which a watch can go on."""

    items: list[Any]
    """What was to be kept of them: without a word about it, they themselves."""
    resource_version: str


def kept(bodies: Iterable[Body], keep: Keep | None) -> list[Any]:
    """What `keep` makes of them, where it makes something."""
    found = bodies if keep is None else map(keep, bodies)
    return [each for each in found if each is not None]


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

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str = "",
        keep: Keep | None = None,
    ) -> Listing:
        """LIST, in as many chunks as it takes. `labels` is a label selector.

        With `keep` there is never more than one whole object in memory.
        """
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
