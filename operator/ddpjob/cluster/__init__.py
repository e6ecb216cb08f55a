"""The interface of a cluster: `kube` is a real one, `local` is one in this process.

Both have the same verbs and the same errors.
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
    """A kind of object and where the API server keeps it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    """Else the namespace of a request is none of its path."""

    @property
    def api_version(self) -> str:
        """Return `v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of the collection, of one object, or of its subresource.

        Raises Refused (400) for a text that is not a name, because `..` would lead elsewhere.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root] if namespace is None else [root, "namespaces", _name(namespace)]
        parts = parts if self.namespaced else [root]
        names = [] if name is None else [_name(name)]
        return "/".join([*parts, self.plural, *names, *([subresource] if subresource else [])])


# A name of an object. No character of it needs quoting in a URL.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def is_name(text: str) -> bool:
    """Return whether an object may be named so."""
    return _NAME.fullmatch(text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        raise cluster_error(400, "BadRequest", f"{text[:80]!r} is no name of an object")
    return text


DDPJOBS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


# Returns the part to keep of an object that is read, or None if the object is not needed.
Keep = Callable[[Body], Any]


@dataclass(frozen=True)
class Listing:
    """All objects of a kind at one resource version, from which a watch can go on."""

    items: list[Any]
    """The parts that `keep` returned, or the objects themselves without `keep`."""
    resource_version: str


def kept(bodies: Iterable[Body], keep: Keep | None) -> list[Any]:
    """Return the parts of the objects that `keep` returns, without None."""
    found = bodies if keep is None else map(keep, bodies)
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class WatchEvent:
    """An event of a watch: ADDED, MODIFIED, DELETED, or BOOKMARK.

    The object of a BOOKMARK has a resource version and nothing else.
    """

    type: str
    object: Body


class Cluster(Protocol):
    """The verbs of a cluster. All raise `errors.ClusterError`. Namespace None is all namespaces."""

    ahead: float
    """Seconds by which the API server's clock is ahead of this machine's."""

    async def create(
        self, resource: Resource, namespace: str, body: bytes | Mapping[str, Any]
    ) -> Body:
        """POST, and return the stored object. Raises AlreadyExists if the name is taken."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Body:
        """GET and return one object."""

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

        Return the object if it stays until its grace period ends, or None if it is gone at once.
        Raises NotFound, or Conflict if another object has taken the name.
        """

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]
    ) -> Body:
        """PATCH by JSON merge. Raises Conflict unless `body.metadata.uid` is the stored one."""

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        """PUT. Raises Conflict unless `body.metadata.resourceVersion` is the stored one."""

    async def update_status(
        self, resource: Resource, namespace: str, body: Mapping[str, Any]
    ) -> Body:
        """PUT on /status. Raises Conflict unless the resourceVersion is the stored one."""

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str = "",
        keep: Keep | None = None,
    ) -> Listing:
        """LIST in chunks, and return all objects. `labels` is a label selector.

        With `keep` there is never more than one whole object in memory.
        """

    def watch(
        self, resource: Resource, *, namespace: str | None, labels: str = "", resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after `resource_version`, and bookmarks, until the server ends the stream.

        Raises Expired if the server's history no longer has that version.
        """

    async def close(self) -> None:
        """Close all connections."""
