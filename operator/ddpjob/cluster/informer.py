"""Keeps a cache of one kind of object by list and watch. It is right again after any gap."""

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

# Bookmarks come about every minute. A watch without an event for longer is taken for broken.
STALE_SECONDS = 150.0
_TOMBSTONES = 10_000
GRACE = "deletionGracePeriodSeconds"


class Item(Protocol):
    """The part of an object that a cache keeps."""

    @property
    def uid(self) -> str:
        """Return the object's uid, which no other object has or has had."""

    @property
    def namespace(self) -> str:
        """Return the object's namespace."""

    @property
    def resource_version(self) -> int:
        """Return the object's version. A newer version has a higher number."""


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
        missed: Callable[[T], None] = lambda item: None,
    ) -> None:
        """`changed(old, new)` is called for every change; None stands for absence.

        `news` is called after it, unless the change is an own write; `missed` before it, with an
        item that is not seen any more, and may exist.
        """
        self._items: dict[str, T] = {}
        self._gone: dict[str, float] = {}
        """uid → resource version at which it went."""
        self._changed, self._news, self._missed = changed, news, missed

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

    def remove(self, uid: str, resource_version: float = math.inf, *, is_gone: bool = True) -> None:
        """Remove the item: for good, or up to this version of it. It may exist unless `is_gone`."""
        self._gone[uid] = resource_version
        while len(self._gone) > _TOMBSTONES:
            del self._gone[next(iter(self._gone))]
        if (old := self._items.pop(uid, None)) is not None:
            if not is_gone:
                self._missed(old)
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
                self.remove(uid, listed_at, is_gone=False)
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
        self.looked = asyncio.Event()
        """Set once it has tried."""
        self.error = ""
        """Why it failed last."""
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
                failures, self.error = failures + 1, str(error)
                is_missing = isinstance(error, NotFound)
                if is_missing:
                    kind, version = self._resource.plural, self._resource.api_version
                    self.error = f"the API server has no {kind} of {version}"
                if is_missing or isinstance(error, Expired):
                    resource_version = ""
                self.looked.set()
                pause = min(0.2 * 2**failures, 10.0) * random.uniform(0.5, 1.0)
                gone = is_missing and self._resource == DDPJOBS
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
        self.looked.set()
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
            if event.type != "BOOKMARK":
                item = self._read(event.object)
                if item is not None and event.type != "DELETED":
                    self._store.put(item)
                else:
                    # What leaves the selection is DELETED too, as it was before. A pod that is gone
                    # had the last of its grace taken first (`BeforeDelete` in k8s.io/apiserver).
                    is_gone = event.type == "DELETED" and metadata.get(GRACE) == 0
                    version = int(metadata["resourceVersion"])
                    self._store.remove(metadata["uid"], version, is_gone=is_gone)
            yield metadata["resourceVersion"]

    def _note_event(self) -> None:
        self.last_event_at = asyncio.get_running_loop().time()
