"""A cache of one kind of object that is right again after any gap: list, replace, watch."""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from ddpjob.cluster import DDPJOBS, Cluster, Resource
from ddpjob.errors import ClusterError, Expired, NotFound
from ddpjob.json_depth import Body

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
    def namespace(self) -> str:
        """Where it is."""
        ...

    @property
    def resource_version(self) -> int:
        """Which of two versions is the newer."""
        ...


T = TypeVar("T", bound=Item)


class Cache(Generic[T]):
    """Items by uid, the newest version of each.

    Remembers what went and when, so that the late answer to an own write revives nothing, and yet
    what only left a selection (by its labels) can come back.
    """

    def __init__(
        self,
        changed: Callable[[T | None, T | None], None],
        news: Callable[[T], None] = lambda item: None,
    ) -> None:
        """`changed(old, new)` is called for every change; None stands for absence.

        `news` is called after it, unless the change is an own write.
        """
        self._items: dict[str, T] = {}
        self._gone: dict[str, float] = {}
        """uid → resource version at which it went."""
        self._changed, self._news = changed, news

    def put(self, item: T, *, own: bool = False) -> None:
        """Take in a newer version, from the watch or from the answer to an own write."""
        old = self._items.get(item.uid)
        seen = old.resource_version if old is not None else self._gone.get(item.uid, -1)
        if seen >= item.resource_version:
            return
        self._gone.pop(item.uid, None)
        self._items[item.uid] = item
        self._changed(old, item)
        if not own:
            self._news(item)

    def remove(self, uid: str, resource_version: float = math.inf) -> None:
        """Forget the item: for good, or up to this version of it."""
        self._gone[uid] = resource_version
        while len(self._gone) > _TOMBSTONES:
            del self._gone[next(iter(self._gone))]
        if (old := self._items.pop(uid, None)) is not None:
            self._changed(old, None)
            self._news(old)

    def replace(self, items: Iterable[T], listed_at: int, namespace: str | None) -> None:
        """Make this all that there is in `namespace` (None: in all).

        But for own writes that are newer than the list.
        """
        listed = {item.uid: item for item in items}
        for uid, old in list(self._items.items()):
            within = namespace in (None, old.namespace)
            if within and uid not in listed and old.resource_version <= listed_at:
                self.remove(uid, listed_at)
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
        store: Cache[T],
        read: Callable[[Body], T | None],
        *,
        namespace: str | None,
        labels: str = "",
    ) -> None:
        self._cluster, self._resource, self._store = cluster, resource, store
        self._read, self._namespace, self._labels = read, namespace, labels
        self.synced = asyncio.Event()
        self.last_event_at = 0.0
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
            except (ClusterError, TimeoutError) as error:
                if isinstance(error, Expired | NotFound):  # or the definition is not there
                    resource_version = ""
                failures += 1
                pause = min(0.2 * 2**failures, 10.0) * random.uniform(0.5, 1.0)
                gone = isinstance(error, NotFound) and self._resource == DDPJOBS
                log.warning(
                    "watch broken resource=%s namespace=%s retry_in=%.1fs error=%s%s",
                    self._resource.plural,
                    self._namespace or "*",
                    pause,
                    error,
                    ": the definition of DDPJob is missing: apply manifests/crd.yaml" * gone,
                )
                await asyncio.sleep(pause)

    async def _relist(self) -> str:
        listing = await self._cluster.list(
            self._resource, namespace=self._namespace, labels=self._labels, keep=self._read
        )
        self._store.replace(listing.items, int(listing.resource_version), self._namespace)
        self._note_event()
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
            self._note_event()
            metadata = event.object["metadata"]
            if event.type == "DELETED":
                self._store.remove(metadata["uid"], int(metadata["resourceVersion"]))
            elif event.type != "BOOKMARK":
                if (item := self._read(event.object)) is not None:
                    self._store.put(item)
                else:  # not ours, or no more
                    self._store.remove(metadata["uid"], int(metadata["resourceVersion"]))
            yield metadata["resourceVersion"]

    def _note_event(self) -> None:
        self.last_event_at = asyncio.get_running_loop().time()
