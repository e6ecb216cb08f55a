"""What a watch has shown: its events, and the changes that its reader has not seen yet. No I/O."""

from collections.abc import Iterable, Iterator

from ddpjob.cluster import WatchEvent
from ddpjob.errors import Unavailable, cluster_error
from ddpjob.json_depth import Body, read_json


def read_event(line: bytes) -> WatchEvent:
    """Return the event in a line. Raises ClusterError for an ERROR, and for what is no event."""
    try:
        event = read_json(line)
        kind, found = event["type"], event["object"]
        if kind != "ERROR":
            int(found["metadata"]["resourceVersion"])
            return WatchEvent(kind, found)
        code, reason, message = (found.get(name) for name in ("code", "reason", "message"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(200, "Garbled", f"no event of a watch: {error!r}") from error
    raise cluster_error(code or 0, reason or "", message or "")


class Seen:
    """The versions of the objects that a reader of a watch has seen.

    After a list the reader gets what differs from them, so a watch that had to begin again looks
    like one that never ended.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def listed(self, bodies: Iterable[Body]) -> Iterator[WatchEvent]:
        """Yield the changes between what was seen and all the objects that there are now."""
        gone = dict(self._known)
        for body in bodies:
            gone.pop(_key(body), None)
            yield from self.changed(WatchEvent("MODIFIED", body))
        for namespace, name in gone:
            uid, _ = self._known.pop((namespace, name))
            meta = {"namespace": namespace, "name": name, "uid": uid}
            yield WatchEvent("DELETED", {"metadata": meta})

    def changed(self, event: WatchEvent) -> Iterator[WatchEvent]:
        """Yield the event if it is news; before it the deletion of another object of the name."""
        key, meta = _key(event.object), event.object["metadata"]
        version = str(meta.get("uid")), str(meta.get("resourceVersion"))
        known = self._known.get(key)
        if event.type == "DELETED":
            if self._known.pop(key, None):
                yield event
            return
        if known == version:
            return
        if known and known[0] != version[0]:
            old = {"namespace": key[0], "name": key[1], "uid": known[0]}
            yield WatchEvent("DELETED", {"metadata": old})
            known = None
        self._known[key] = version
        yield WatchEvent("MODIFIED" if known else "ADDED", event.object)


def _key(body: Body) -> tuple[str, str]:
    meta = body["metadata"]
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")
