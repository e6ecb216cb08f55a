"""A cluster in this process's memory, for local mode and tests, with the API server's semantics.

There are no background tasks: garbage is collected within the delete that makes it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from ddpjob.cluster import DDPJOBS, PODS, Keep, Listing, Resource, WatchEvent, is_name, kept
from ddpjob.errors import InvalidJob, cluster_error
from ddpjob.json_depth import Body, merged
from ddpjob.local.store import Selector, Store, Stored
from ddpjob.times import written

# Revisions. A job of 8 ranks makes about 100.
HISTORY = 10_000
# The API server's default in seconds for a pod without a grace period.
DEFAULT_GRACE = 30
# Kinds whose status is written through /status alone.
WITH_STATUS = (DDPJOBS, PODS)
POD_SPEC_MUTABLE = ("activeDeadlineSeconds",)
# Fields of metadata that are never taken from a request.
SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)

Admit = Callable[[Resource, Body], Body]


class LocalCluster:
    """A `Cluster` without a server. Pods are bound to `node_name` as they are created.

    `admit` judges and completes new and changed objects, as an API server's schema does: it
    returns the object to store or raises InvalidJob, which becomes a 422.
    """

    ahead = 0.0

    def __init__(
        self,
        *,
        admit: Admit = lambda _, body: body,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        node_name: str = "local",
        history: int = HISTORY,
    ) -> None:
        self._admit, self._now, self._node_name = admit, now, node_name
        self._store = Store(history)

    async def create(
        self, resource: Resource, namespace: str, body: bytes | Mapping[str, Any]
    ) -> Body:
        """Store a new object. Raises Conflict where the name is taken, Refused if invalid."""
        await self._arrive()
        new = _read(resource, namespace, body)
        meta = new["metadata"]
        if self._store.get(resource, namespace, meta["name"]):
            message = f'{resource.plural} "{meta["name"]}" already exists'
            raise cluster_error(409, "AlreadyExists", message)
        if resource in WITH_STATUS:
            new.pop("status", None)
        if resource == PODS:
            self._bind(new)
        new = self._check_edit(resource, new)
        created = {"uid": str(uuid.uuid4()), "creationTimestamp": self._timestamp()}
        new["metadata"] = _without_server_fields(meta) | created | {"generation": 1}
        stored = self._store.commit(resource, new)
        if self._store.is_orphan(stored):  # its owner went first: garbage from birth
            self._remove(resource, stored.body, None)
        return stored.body

    async def get(self, resource: Resource, namespace: str, name: str) -> Body:
        """Return one object. Raises NotFound."""
        await self._arrive()
        return self._find(resource, namespace, name).body

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        """Replace all but the status; what changes the spec raises `metadata.generation`.

        Raises Conflict if `body` carries a resourceVersion that is not the stored one.
        """
        await self._arrive()
        new = _read(resource, namespace, body)
        old = self._find(resource, namespace, new["metadata"]["name"]).body
        _check_version(old, new, required=False)
        if resource in WITH_STATUS:
            new.pop("status", None)
            new |= {"status": old["status"]} if "status" in old else {}
        new = self._check_edit(resource, new)
        if resource == PODS:
            _check_pod_change(old["spec"], new["spec"])
        kept = {
            field: old["metadata"][field] for field in SERVER_FIELDS if field in old["metadata"]
        }
        new["metadata"] = _without_server_fields(new["metadata"]) | kept
        if _content(new) != _content(old):
            new["metadata"]["generation"] += 1
        return new if new == old else self._store.commit(resource, new).body

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]
    ) -> Body:
        """Merge `body` into all but the status. Raises Conflict if it has another uid."""
        old = await self.get(resource, namespace, name)
        return await self.update(resource, namespace, merged(old, body))

    async def update_status(
        self, resource: Resource, namespace: str, body: Mapping[str, Any]
    ) -> Body:
        """Replace the status alone, of a pod the annotations too; no change is no write.

        That the API server takes a pod's annotations here is what a node reports ports with.
        """
        await self._arrive()
        new = _read(resource, namespace, body)
        old = self._find(resource, namespace, new["metadata"]["name"]).body
        _check_version(old, new, required=True)
        changed = {**old, "status": new.get("status") or {}}
        if resource == PODS and new["metadata"].get("annotations"):
            annotations = new["metadata"]["annotations"]
            changed["metadata"] = {**old["metadata"], "annotations": annotations}
        return old if changed == old else self._store.commit(resource, changed).body

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
    ) -> Body | None:
        """Delete with a uid precondition, then collect what the object owned.

        A pod that may run lives on, marked, until its node deletes it with `grace_seconds=0`.
        """
        await self._arrive()
        stored = self._find(resource, namespace, name)
        if stored.uid != uid:
            message = f"{name}: uid in precondition is {uid}, uid in object {stored.uid}"
            raise cluster_error(409, "Conflict", message)
        return self._remove(resource, stored.body, grace_seconds)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str = "",
        keep: Keep | None = None,
    ) -> Listing:
        """Return all objects that match, ordered by namespace and name."""
        await self._arrive()
        found = self._store.select(resource, namespace, _selects(labels))
        return Listing(kept((stored.body for stored in found), keep), str(self._store.revision))

    def watch(
        self, resource: Resource, *, namespace: str | None, labels: str = "", resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after `resource_version`, until `end_watches`. Raises Expired."""
        selector, revision = _selects(labels), int(resource_version)
        return self._store.watch(resource, namespace, selector, revision)

    def end_watches(self) -> None:
        """End every open watch, as an API server does now and then."""
        self._store.end_watches()

    async def close(self) -> None:
        """Do nothing, because there are no connections."""

    def _remove(self, resource: Resource, body: Body, grace_seconds: int | None) -> Body | None:
        grace = _grace(body, grace_seconds) if resource == PODS else 0
        if grace > 0:
            return self._mark_deleted(resource, body, grace)
        if resource == PODS:
            body["metadata"].setdefault("deletionTimestamp", self._timestamp())
            body["metadata"]["deletionGracePeriodSeconds"] = 0
        gone = self._store.commit(resource, body, delete=True)
        for kind, orphan in self._store.orphans_of(gone.owner):
            self._remove(kind, orphan.body, None)
        return None

    def _mark_deleted(self, resource: Resource, body: Body, grace: int) -> Body:
        """Begin a pod's graceful deletion, or shorten the one that has begun, never prolong it."""
        meta = body["metadata"]
        asked, begun = meta.get("deletionGracePeriodSeconds"), self._now()
        if asked is not None:
            if grace >= asked:
                return body
            begun = datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=asked)
        meta["deletionTimestamp"] = written(begun + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        meta["generation"] += 1
        return self._store.commit(resource, body).body

    def _bind(self, pod: Body) -> None:
        spec = pod.setdefault("spec", {})
        spec.setdefault("nodeName", self._node_name)
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE)
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._timestamp()}
        pod["status"] = {"phase": "Pending", "conditions": [bound]}

    def _check_edit(self, resource: Resource, body: Body) -> Body:
        try:
            return self._admit(resource, body)
        except InvalidJob as problem:
            raise cluster_error(422, "Invalid", str(problem)) from problem

    def _find(self, resource: Resource, namespace: str, name: str) -> Stored:
        stored = self._store.get(resource, namespace, name)
        if stored is None:
            raise cluster_error(404, "NotFound", f'{resource.plural} "{name}" not found')
        return stored

    def _timestamp(self) -> str:
        return written(self._now())

    async def _arrive(self) -> None:
        """Let others run first, as every request does; from here to the answer nobody can."""
        await asyncio.sleep(0)


def _selects(labels: str) -> Selector:
    """Return a test of labels by a selector such as `a=b,c=d`; nobody here asks for more."""
    wanted = dict(each.split("=") for each in labels.split(",")) if labels else {}
    return lambda found: wanted.items() <= found.items()


def _read(resource: Resource, namespace: str, body: bytes | Mapping[str, Any]) -> Body:
    """A private copy of what was sent, with its name and namespace checked."""
    new: Body = orjson.loads(body if isinstance(body, bytes) else orjson.dumps(body))
    new.setdefault("apiVersion", resource.api_version)
    new.setdefault("kind", resource.kind)
    meta = new.setdefault("metadata", {})
    meta.setdefault("namespace", namespace)
    for field in ("name", "namespace"):
        text = str(meta.get(field) or "")
        if not is_name(text):
            message = f"metadata.{field}: must be a DNS-1123 name, got {text!r}"
            raise cluster_error(422, "Invalid", message)
    return new


def _check_version(old: Body, new: Body, *, required: bool) -> None:
    stored, sent = old["metadata"], new["metadata"]
    versions = sent.get("resourceVersion"), stored["resourceVersion"]
    stale = versions[0] != versions[1] and (versions[0] or required)
    if stale or sent.get("uid", stored["uid"]) != stored["uid"]:
        message = (
            f"{stored['name']}: it has changed since it was read ({versions[0]}, {versions[1]})"
        )
        raise cluster_error(409, "Conflict", message)


def _check_pod_change(old: Body, new: Body) -> None:
    changed = [f for f in {*old, *new} - {*POD_SPEC_MUTABLE} if old.get(f) != new.get(f)]
    if changed:
        message = f"spec.{min(changed)}: must not change in a pod"
        raise cluster_error(422, "Invalid", message)


def _grace(pod: Body, asked: int | None) -> int:
    """Seconds that `pod` may live on; none where nothing of it can be running."""
    if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
        return 0
    return asked if asked is not None else int(pod["spec"]["terminationGracePeriodSeconds"])


def _without_server_fields(meta: Body) -> Body:
    return {field: value for field, value in meta.items() if field not in SERVER_FIELDS}


def _content(body: Body) -> Body:
    """What `metadata.generation` counts changes of."""
    return {field: value for field, value in body.items() if field not in ("metadata", "status")}
