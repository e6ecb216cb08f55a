"""A cache of one kind of object that is right again after any gap: list, replace, watch."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from ddpjob.cluster import Body, Cluster, Resource
from ddpjob.errors import ClusterError, Expired

log = logging.getLogger(__name__)

STALE_SECONDS = (
    150.0  # bookmarks come every minute or so; a watch silent for longer is taken for dead
)
_TOMBSTONES = 10_000


class Item(Protocol):
    """What a store keeps of an object."""

    @property
    def uid(self) -> str:
        """What tells it from all other objects, past ones included."""
        ...

    @property
    def resource_version(self) -> int:
        """Which of two versions is the newer."""
        ...


T = TypeVar("T", bound=Item)


class Store(Generic[T]):
    """Items by uid, the newest version of each.

    Remembers what was deleted, so that the late answer to an own write revives nothing.
    """

    def __init__(self, changed: Callable[[T | None, T | None], None]) -> None:
        """`changed(old, new)` is called for every change; None stands for absence."""
        self._items: dict[str, T] = {}
        self._deleted: dict[str, None] = {}
        self._changed = changed

    def put(self, item: T) -> None:
        """Take in a newer version, from the watch or from the answer to an own write."""
        old = self._items.get(item.uid)
        if item.uid in self._deleted:
            return
        if old is not None and old.resource_version >= item.resource_version:
            return
        self._items[item.uid] = item
        self._changed(old, item)

    def remove(self, uid: str) -> None:
        """Forget the item for good."""
        self._deleted[uid] = None
        while len(self._deleted) > _TOMBSTONES:
            del self._deleted[next(iter(self._deleted))]
        if (old := self._items.pop(uid, None)) is not None:
            self._changed(old, None)

    def replace(self, items: Iterable[T], listed_at: int) -> None:
        """Make this the whole content, but for own writes that are newer than the list."""
        listed = {item.uid: item for item in items}
        for uid, old in list(self._items.items()):
            if uid not in listed and old.resource_version <= listed_at:
                self.remove(uid)
        for item in listed.values():
            self.put(item)

    def __len__(self) -> int:
        return len(self._items)


class Informer(Generic[T]):
    """Keeps a store equal to what the API server has, whatever happens to the connection.

    `read` makes of an object what is worth keeping, or None if the object is none of ours.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        store: Store[T],
        read: Callable[[Body], T | None],
        *,
        namespace: str | None,
        labels: str = "",
    ) -> None:
        self._cluster, self._resource, self._store = cluster, resource, store
        self._read, self._namespace, self._labels = read, namespace, labels
        self.synced = asyncio.Event()
        self.last_heard = 0.0
        """Loop time of the last list, event or bookmark."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        resource_version, failures = "", 0
        while True:
            try:
                if not resource_version:
                    resource_version = await self._relist()
                async for seen in self._follow(resource_version):
                    resource_version, failures = seen, 0
                failures = 0
            except Expired:
                resource_version = ""
            except (ClusterError, TimeoutError) as error:
                failures += 1
                pause = min(0.2 * 2**failures, 10.0) * random.uniform(0.5, 1.0)
                log.warning(
                    "watch broken resource=%s namespace=%s retry_in=%.1fs error=%s",
                    self._resource.plural,
                    self._namespace or "*",
                    pause,
                    error,
                )
                await asyncio.sleep(pause)

    async def _relist(self) -> str:
        listing = await self._cluster.list(
            self._resource, namespace=self._namespace, labels=self._labels
        )
        items = [item for body in listing.items if (item := self._read(body)) is not None]
        self._store.replace(items, int(listing.resource_version))
        self._heard()
        self.synced.set()
        return listing.resource_version

    async def _follow(self, resource_version: str) -> AsyncIterator[str]:
        """Take in events; yields the resource version up to which the store is right."""
        stream = self._cluster.watch(
            self._resource,
            namespace=self._namespace,
            labels=self._labels,
            resource_version=resource_version,
        )
        events = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(STALE_SECONDS):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            self._heard()
            if event.type == "DELETED":
                self._store.remove(event.object["metadata"]["uid"])
            elif event.type != "BOOKMARK" and (item := self._read(event.object)) is not None:
                self._store.put(item)
            yield event.object["metadata"]["resourceVersion"]

    def _heard(self) -> None:
        self.last_heard = asyncio.get_running_loop().time()
