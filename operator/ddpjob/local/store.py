"""Objects in memory, one revision counter, and the history that watches read: the local etcd.

What it keeps is JSON text, so nothing handed out can change what is stored.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import orjson

from ddpjob.cluster import Resource, WatchEvent
from ddpjob.errors import cluster_error
from ddpjob.json_depth import Body

# A watch gets a bookmark after so many seconds without an event.
BOOKMARK_SECONDS = 60.0

Selector = Callable[[Mapping[str, str]], bool]
# Namespace and name.
Key = tuple[str, str]
# Namespace and uid. Objects have no owners in other namespaces.
Owner = tuple[str, str]


@dataclass(frozen=True)
class Stored:
    """One object at one revision, with what is asked about it often."""

    key: Key
    uid: str
    text: bytes
    labels: Mapping[str, str]
    owners: frozenset[Owner]

    @classmethod
    def of(cls, body: Body) -> "Stored":
        """Return the frozen form of `body`."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        named = meta.get("ownerReferences") or ()
        owners = frozenset((meta["namespace"], owner.get("uid", "")) for owner in named)
        return cls(key, meta["uid"], orjson.dumps(body), meta.get("labels") or {}, owners)

    @property
    def owner(self) -> Owner:
        """Return the key by which other objects name this one as their owner."""
        return self.key[0], self.uid

    @property
    def body(self) -> Body:
        """Return a copy of the object, which the reader may change."""
        body: Body = orjson.loads(self.text)
        return body


@dataclass(frozen=True)
class Change:
    """One revision: the object before and after it, either of which may be missing."""

    resource: Resource
    before: Stored | None
    after: Stored | None
    final: Stored  # the object at this revision, also where it was deleted

    def seen_by(
        self, resource: Resource, namespace: str | None, selector: Selector
    ) -> WatchEvent | None:
        """Return the event of a watch, or None.

        An object that leaves the selection is DELETED, as it was before, with the new version.
        """
        if resource != self.resource or namespace not in (None, self.final.key[0]):
            return None
        was = self.before is not None and selector(self.before.labels)
        now = self.after is not None and selector(self.after.labels)
        kinds = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}
        kind = kinds.get((was, now))
        body = self.final.body
        if self.before is not None and self.after is not None and not now:
            version = body["metadata"]["resourceVersion"]
            body = self.before.body
            body["metadata"]["resourceVersion"] = version
        return WatchEvent(kind, body) if kind else None


class Store:
    """All objects of a cluster. `history` is the number of revisions that a watch can go back."""

    def __init__(self, history: int) -> None:
        self.revision = 0
        self._objects: dict[Resource, dict[Key, Stored]] = {}
        self._owners: set[Owner] = set()
        self._history: deque[Change] = deque(maxlen=history)
        self._streams = 0  # raised to end every open watch
        self._changed = asyncio.Event()

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        """Return the object as it is now, or None."""
        return self._objects.get(resource, {}).get((namespace, name))

    def select(self, resource: Resource, namespace: str | None, selector: Selector) -> list[Stored]:
        """Return the objects that match, ordered by namespace and name."""
        objects = self._objects.get(resource, {}).values()
        found = [s for s in objects if namespace in (None, s.key[0]) and selector(s.labels)]
        return sorted(found, key=lambda stored: stored.key)

    def commit(self, resource: Resource, body: Body, *, delete: bool = False) -> Stored:
        """Store or drop `body` as the next revision. All writes go through here."""
        self.revision += 1
        meta = {**body["metadata"], "resourceVersion": str(self.revision)}
        final = Stored.of({**body, "metadata": meta})
        objects = self._objects.setdefault(resource, {})
        before = objects.get(final.key)
        if delete:
            del objects[final.key]
            self._owners.discard(final.owner)
        else:
            objects[final.key] = final
            self._owners.add(final.owner)
        self._history.append(Change(resource, before, None if delete else final, final))
        self._wake()
        return final

    def is_orphan(self, stored: Stored) -> bool:
        """Return whether the object had owners, and none of them is left."""
        return bool(stored.owners) and self._owners.isdisjoint(stored.owners)

    def orphans_of(self, owner: Owner) -> list[tuple[Resource, Stored]]:
        """Return the objects that `owner` owned and that no object owns now."""
        return [
            (resource, stored)
            for resource, objects in self._objects.items()
            for stored in objects.values()
            if owner in stored.owners and self.is_orphan(stored)
        ]

    async def watch(
        self, resource: Resource, namespace: str | None, selector: Selector, revision: int
    ) -> AsyncIterator[WatchEvent]:
        """Yield events after `revision`, until `end_watches`. Raises Expired (410)."""
        stream = self._streams
        while stream == self._streams:
            changed = self._changed
            while revision < self.revision:
                revision += 1
                event = self._change(revision).seen_by(resource, namespace, selector)
                if event:
                    yield event
            if not await _happens(changed):
                meta = {"resourceVersion": str(revision)}
                yield WatchEvent("BOOKMARK", {"kind": resource.kind, "metadata": meta})

    def end_watches(self) -> None:
        """End every open watch; the watchers are free to come back."""
        self._streams += 1
        self._wake()

    def _change(self, revision: int) -> Change:
        forgotten = self.revision - len(self._history)
        if revision <= forgotten:
            message = f"too old resource version: {revision - 1} ({forgotten})"
            raise cluster_error(410, "Expired", message)
        return self._history[revision - forgotten - 1]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _happens(event: asyncio.Event) -> bool:
    """Whether it does, before a bookmark is due."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BOOKMARK_SECONDS):
            return await event.wait()
    return False
