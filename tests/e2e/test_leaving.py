"""Everything can be deleted in any order, with the operator up or down, and nothing hangs."""

import re
from collections.abc import Iterator

import pytest

from ddpjob import names
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e.install import (
    CRD,
    SYSTEM,
    Job,
    gone,
    install,
    left_over,
    scale_operator,
    uninstall,
    wait_until,
)

SLEEP = ["python3", "-c", "import time; time.sleep(3600)"]


@pytest.fixture(autouse=True)
def installed(kind_cluster: KindCluster, operator_image: str) -> Iterator[None]:
    install(kind_cluster)
    yield
    uninstall(kind_cluster)


def sleeper(cluster: KindCluster, namespace: str, image: str, name: str = "sleeper") -> Job:
    """A job of two pods that do nothing, and end at once when asked to."""
    job = Job.from_spec(
        cluster, namespace, name, image=image, nnodes=2, launcher="none", command=SLEEP
    )
    job.in_state("Running")
    return job


def namespace_gone(cluster: KindCluster, name: str, seconds: float = 180) -> None:
    def look() -> bool:
        names = [found["metadata"]["name"] for found in cluster.get("namespaces")["items"]]
        return name not in names

    wait_until(look, seconds, f"end of namespace {name}")


def test_uninstalling_leaves_a_running_job_running(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    job = sleeper(kind_cluster, namespace, trainer_image)
    uninstall(kind_cluster)
    pods = job.pods()
    assert {pod["status"]["phase"] for pod in pods.values()} == {"Running"}
    assert all("deletionTimestamp" not in pod["metadata"] for pod in pods.values())
    install(kind_cluster)
    job.in_state("Running")
    assert job.pods().keys() == pods.keys() and job.status["restarts"] == 0
    job.delete()
    gone(kind_cluster, "-n", namespace)


def test_without_an_operator_a_deleted_job_leaves_nothing_and_a_deleted_namespace_goes(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    job = sleeper(kind_cluster, namespace, trainer_image)
    sleeper(kind_cluster, namespace, trainer_image, "other")
    scale_operator(kind_cluster, 0)
    job.delete()
    wait_until(lambda: not job.pods(), 120, "end of the job's pods")
    kind_cluster.delete_namespace(namespace)
    namespace_gone(kind_cluster, namespace)


@pytest.mark.parametrize("operator", ["up", "down"])
def test_the_operators_own_namespace_goes_with_a_job_in_it(
    kind_cluster: KindCluster, trainer_image: str, operator: str
) -> None:
    sleeper(kind_cluster, SYSTEM, trainer_image)
    if operator == "down":
        scale_operator(kind_cluster, 0)
    kind_cluster.kubectl("delete", "namespace", SYSTEM, "--wait=false")
    namespace_gone(kind_cluster, SYSTEM)
    # What the release left outside its namespace; Helm has forgotten it with its secrets.
    labels = "app.kubernetes.io/name=ddpjob"
    kind_cluster.kubectl("delete", "clusterrole,clusterrolebinding", "-l", labels)


def documented(start: str) -> list[str]:
    """The arguments of the command in docs/install.md that begins with these words."""
    page = (ROOT / "docs" / "install.md").read_text()
    (found,) = re.findall(rf"^{start}.*(?=  #)", page, re.MULTILINE)
    return str(found).split()[1:]


def test_the_documented_commands_leave_nothing_but_the_crd(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    sleeper(kind_cluster, namespace, trainer_image)
    kind_cluster.kubectl(*documented("kubectl delete ddpjobs"), timeout_seconds=200)
    assert not [name for name in left_over(kind_cluster, "-A") if name.startswith("Pod/")]
    gone(kind_cluster, "-A")
    kind_cluster.helm(*documented("helm uninstall"))
    kinds = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
    ours = ("-l", "app.kubernetes.io/name=ddpjob")
    everything = kind_cluster.get(kinds, "-A", *ours)["items"]
    everything += kind_cluster.get("clusterroles,clusterrolebindings", *ours)["items"]
    everything += kind_cluster.get("secrets", "-A", "-l", "owner=helm,name=ddpjob")["items"]
    assert [f"{o['kind']}/{o['metadata']['name']}" for o in everything] == []
    crds = [o["metadata"]["name"] for o in kind_cluster.get("crds")["items"]]
    assert [name for name in crds if name.endswith(names.GROUP)] == [CRD]
