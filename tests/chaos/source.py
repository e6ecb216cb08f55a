"""What happened in a namespace of a real cluster: every state of every object, and who wrote it.

Watches of its own bring the states, in the order of their resource versions, which is etcd's for
all kinds together; the API server's audit log has the requests. The operator is asked nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ddpjob.cluster import CONFIGMAPS, DDPJOBS, NETWORK_POLICIES, PODS, SERVICES, Resource
from ddpjob.json_depth import Body
from tests.chaos.auditor import Entry
from tests.cluster import audit
from tests.cluster.client import Client

KINDS = {r.plural: r for r in (DDPJOBS, PODS, SERVICES, CONFIGMAPS, NETWORK_POLICIES)}
CLUSTERS_OWN = "kube-root-ca.crt"  # a ConfigMap of every namespace


@dataclass(frozen=True)
class Change:
    """One event of a watch."""

    version: int
    type: str
    body: Body
    at: float = 0.0  # loop time


@dataclass
class Source:
    """Follows one namespace; `changes` grows until it is cut."""

    client: Client
    namespace: str
    seen: Callable[[str, Body], None]
    """Called with the type of each event and the object."""
    objects: dict[tuple[str, str], Body] = field(default_factory=dict)
    """What there is, by plural and name."""
    changes: list[Change] = field(default_factory=list)
    last_change: float = 0.0  # loop time

    async def follow(self, resource: Resource) -> None:
        """Keep up with one kind until cancelled; no event is ever missed."""
        path = resource.path(self.namespace)
        version = (await self.client.request("GET", path))["metadata"]["resourceVersion"]
        while True:
            try:
                async for type_, body in self.client.watch(path, version):
                    if type_ == "ERROR":
                        raise AssertionError(f"the auditor lost sight of {path}: {body}")
                    version = body["metadata"]["resourceVersion"]
                    if body["metadata"]["name"] != CLUSTERS_OWN:
                        body["metadata"].pop("managedFields", None)
                        self._take_in(resource, type_, {"kind": resource.kind, **body})
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.1)

    def _take_in(self, resource: Resource, type_: str, body: Body) -> None:
        version = int(body["metadata"]["resourceVersion"])
        self.last_change = asyncio.get_running_loop().time()
        self.changes.append(Change(version, type_, body, self.last_change))
        key = resource.plural, body["metadata"]["name"]
        if type_ == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = body
        self.seen(type_, body)

    def of(self, resource: Resource) -> list[Body]:
        """All objects of a kind."""
        return [body for (plural, _), body in self.objects.items() if plural == resource.plural]


def answered(write: audit.Entry) -> tuple[str, str]:
    """uid and resource version of what a write was answered with."""
    found = write.response
    meta = found.get("metadata") or {}
    return meta.get("uid") or (found.get("details") or {}).get("uid", ""), meta.get(
        "resourceVersion", ""
    )


def entries(changes: Sequence[Change], writes: Sequence[audit.Entry], operator: str) -> list[Entry]:
    """One entry for each change, in order, with the request that made it where there was one."""
    done = [w for w in writes if 200 <= w.code < 300 and w.resource.split("/")[0] in KINDS]
    by_version: dict[tuple[str, str], audit.Entry] = {}
    for write in done:  # one that changed nothing is answered with the version before it
        by_version.setdefault(answered(write), write)
    last_deletion = {answered(w)[0]: w for w in done if w.verb == "delete"}
    known: dict[str, Body] = {}
    used: set[int] = set()
    found = []
    for change in sorted(changes, key=lambda change: change.version):
        uid = change.body["metadata"]["uid"]
        gone = change.type == "DELETED"
        made_by = last_deletion.get(uid) if gone else by_version.get((uid, str(change.version)))
        if made_by is not None and id(made_by) in used:
            made_by = None  # the deletion that was asked for, carried out by nobody we know
        if made_by is not None:
            used.add(id(made_by))
        before = known.pop(uid, None)
        if not gone:
            known[uid] = change.body
        found.append(
            Entry(
                by_operator=made_by is not None and made_by.user == operator,
                verb=_verb(change, made_by),
                kind=change.body["kind"],
                sent=made_by.request if made_by else {},
                before=before or (change.body if gone else None),
                after=None if gone else change.body,
                at=change.at,
            )
        )
    return found


def _verb(change: Change, write: audit.Entry | None) -> str:
    if write is None:
        return {"ADDED": "create", "MODIFIED": "update", "DELETED": "delete"}[change.type]
    ours = (write.resource, write.verb) == ("ddpjobs/status", "update")
    return "status" if ours else write.verb


def blind(writes: Sequence[audit.Entry], operator: str) -> list[str]:
    """The operator's writes, done or refused, that do not say what they were made for."""
    wrong = []
    for write in writes:
        if write.user != operator or not write.request or write.resource == "events":
            continue
        meta = write.request.get("metadata") or {}
        named: dict[str, Any] = {
            "delete": (write.request.get("preconditions") or {}).get("uid"),
            "update": meta.get("resourceVersion"),
            "patch": meta.get("uid"),
        }
        if not named.get(write.verb, True):
            wrong.append(f"I12: {write.verb} of {write.resource} {write.name} names no version")
    return wrong
