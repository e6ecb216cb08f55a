"""An API server of a few objects, for verbs of a client that only read and change them."""

from copy import deepcopy
from typing import Any

import pytest

from ddpjob import Client
from ddpjob.cli.options import Place
from ddpjob.cluster import DDPJOBS, Resource
from ddpjob.cluster.connection import MERGE, Connection
from ddpjob.code.code_maps import STRATEGIC
from ddpjob.errors import cluster_error
from ddpjob.json_depth import merged


class Played(Connection):
    """Objects by their path. While it is `away`, it changes none."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__("team")
        self.away, self.user = False, "ana"
        self.stored = {DDPJOBS.path("team", each["metadata"]["name"]): each for each in jobs}

    def names(self, resource: Resource) -> set[str]:
        """The names of the objects of a kind."""
        return {key.rpartition("/")[2] for key in self.stored if f"/{resource.plural}/" in key}

    def request(self, verb: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        if self.away and verb != "GET":
            raise cluster_error(503, "", "away")
        if verb == "POST":
            name, namespace = body["metadata"]["name"], path.split("/")[-2]
            path = f"{path}/{name}"
            if path in self.stored:
                raise cluster_error(409, "AlreadyExists", path)
            own = {"uid": name, "namespace": namespace, "resourceVersion": "1", "generation": 1}
            new = {**body, "metadata": {**body["metadata"], **own}}
        elif path not in self.stored:
            raise cluster_error(404, "NotFound", path)
        elif verb == "DELETE":
            return self.stored.pop(path)
        else:
            new = self._patched(self.stored[path], body, more.get("content_type"))
        self.stored[path] = new
        return deepcopy(new)

    def _patched(self, old: Any, body: Any, content_type: str | None) -> Any:
        if content_type == STRATEGIC:  # of lists, that of the owners alone
            owners = {each["uid"]: each for each in old["metadata"].get("ownerReferences", ())}
            owners |= {each["uid"]: each for each in body["metadata"]["ownerReferences"]}
            left = [each for each in owners.values() if "$patch" not in each]
            return merged(old, {"metadata": {"ownerReferences": left}})
        new = merged(old, body) if content_type == MERGE else old
        generation = old["metadata"].get("generation", 1) + (new.get("spec") != old.get("spec"))
        return merged(new, {"metadata": {"generation": generation}})


def play(monkeypatch: pytest.MonkeyPatch, *jobs: dict[str, Any]) -> Played:
    """The server that all commands reach from now on."""
    played, client = Played(*jobs), Client("team")
    client.connection = played
    monkeypatch.setattr(Place, "client", lambda *_, **__: client)
    return played
