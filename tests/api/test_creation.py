"""New jobs by the SDK's client on a real API server."""

from collections.abc import Iterator

import pytest

from ddpjob import Client
from ddpjob.errors import AlreadyExists, Refused
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer


@pytest.fixture
def client(api_server: ApiServer, crd: None, namespace: str) -> Iterator[Client]:
    made = Client(namespace, kubeconfig=api_server.kubeconfig)
    yield made
    made.connection.close()


def test_a_rerun_is_a_new_job_with_the_next_free_name(client: Client) -> None:
    job = client.submit(job_object("digits", nnodes=2))
    client.submit(job_object("digits-3"))
    second = job.rerun(nnodes=4, failurePolicy={"maxRestarts": 0})
    assert (second.name, second.body["spec"]["nnodes"]) == ("digits-2", 4)
    assert second.body["spec"]["failurePolicy"]["maxRestarts"] == 0
    assert second.user == "admin"
    assert second.rerun().name == "digits-4"
    assert job.rerun(name="other").name == "other"
    with pytest.raises(AlreadyExists):
        job.rerun(name="other")
    with pytest.raises(Refused, match="nnodes"):
        job.rerun(nnodes=0)


def test_a_field_that_the_cluster_does_not_know_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match='unknown field "spec.coda"') as refused:
        client.submit(job_object("digits", coda={}))
    assert "older" in refused.value.advice
    assert client.jobs() == []
