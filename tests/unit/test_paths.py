"""A name from outside never leads a request elsewhere."""

from typing import Any

import pytest

from ddpjob import cluster
from ddpjob.cluster import Resource
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from ddpjob.errors import Refused

RESOURCES = [value for value in vars(cluster).values() if isinstance(value, Resource)]
HOSTILE = [
    *("..", ".", "", "../../../pods", "a/b", "a?watch=1", "a#b", "a%2fb", "a%2e%2e", "a b", "a\nb"),
    *("a\\b", "A", "é", "a" * 300, "http://example.com", "a\x00", "-a", "a-"),
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_request_is_sent_for_what_is_no_name(text: str) -> None:
    """To a port where nobody listens: whoever asks gets another error than Refused."""
    told = list[object]()
    kube = KubeCluster(
        Credentials(server="http://127.0.0.1:1"), told=lambda *request: told.append(request)
    )
    body = {"metadata": {"name": text, "resourceVersion": "1"}}
    try:
        for resource in RESOURCES:
            requests: list[Any] = [
                kube.create(resource, text, b"{}"),
                kube.get(resource, "team", text),
                kube.get(resource, text, "digits"),
                kube.delete(resource, "team", text, uid="u"),
                kube.patch(resource, "team", text, {}),
                kube.update(resource, "team", body),
                kube.update_status(resource, "team", body),
                kube.list(resource, namespace=text),
                anext(kube.watch(resource, namespace=text, resource_version="1")),
            ]
            for request in requests:
                with pytest.raises(Refused, match="no name"):
                    await request
        assert not told
    finally:
        await kube.close()
