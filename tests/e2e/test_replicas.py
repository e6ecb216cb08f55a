"""Two replicas of the operator, from one and back, in drains and deaths: jobs go on."""

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.cluster.kind import KindCluster
from tests.e2e.install import (
    CHART,
    OPERATOR,
    SYSTEM,
    Job,
    evict,
    gone,
    holder,
    operator_pods,
    wait_until,
)
from tests.e2e.recovery import node_of, recover, steady_job
from tests.e2e.silence import FAULTS, settled

pytestmark = pytest.mark.usefixtures("installed")
SLEEP = ["python3", "-c", "import time; time.sleep(3600)"]


def upgrade(cluster: KindCluster, replicas: int) -> None:
    """`helm upgrade` to so many, and wait until they are ready and the others gone."""
    cluster.helm(
        *("upgrade", "ddpjob", str(CHART), "--namespace", SYSTEM, "--set", f"replicas={replicas}"),
        *("--wait", "--timeout", "120s"),
    )
    wait_until(lambda: len(operator_pods(cluster)) == replicas, 60, f"{replicas} operator pods")


def lose_a_pod(job: Job) -> None:
    """Delete a pod of the running job, which takes an operator that works to mend."""
    attempt = job.status["attempt"]
    name = f"{job.name}-{attempt}-1"
    job.cluster.kubectl("delete", "pod", name, "-n", job.namespace, "--wait=false")
    job.until(lambda s: s["attempt"] == attempt + 1 and s["state"] == "Running", 120, "restart")


def test_two_replicas_outlive_a_drain_and_a_death_and_become_one_again(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    cluster = kind_cluster
    anew = {"restartStrategy": "Recreate"}  # as many decisions as there can be
    sleeps = {"launcher": "none", "command": SLEEP, "failurePolicy": anew}
    job = Job.from_spec(cluster, namespace, "sleeper", image=trainer_image, nnodes=2, **sleeps)
    job.in_state("Running")
    before = job.pods().keys()
    upgrade(cluster, 1)
    upgrade(cluster, 2)
    first = holder(cluster)
    (standby,) = {pod["metadata"]["name"] for pod in operator_pods(cluster)} - {first}
    # A drain of both nodes at once: one replica has to wait for the other's successor.
    workers = cluster.workers()
    cluster.kubectl("cordon", *workers)
    try:
        evict(cluster, SYSTEM, first)
        with pytest.raises(AssertionError, match="disruption budget"):
            evict(cluster, SYSTEM, standby)
    finally:
        cluster.kubectl("uncordon", *workers)
    # The one that stood by, or the evicted one's replacement: who asks first when it is free.
    second = holder(cluster, other_than=first)
    lose_a_pod(job)
    wait_until(lambda: len(ready(cluster)) == 2, 90, "second replica")
    cluster.kubectl("delete", "pod", second, "-n", SYSTEM, "--force", "--grace-period=0")
    holder(cluster, other_than=second)
    lose_a_pod(job)
    running = job.pods()
    upgrade(cluster, 1)
    lose_a_pod(job)
    assert before == {"sleeper-0-0", "sleeper-0-1"}
    assert running.keys() == {"sleeper-2-0", "sleeper-2-1"}
    status = job.status
    assert (status["attempt"], status["restarts"], status["budget"]["charged"]) == (3, 3, 0)
    left = cluster.get("leases,poddisruptionbudgets,roles", "-n", SYSTEM)["items"]
    assert [
        found["metadata"]["name"] for found in left if OPERATOR in found["metadata"]["name"]
    ] == []
    label = f"{names.JOB_LABEL}={job.name}"
    assert len(cluster.get("pods", "-n", namespace, "-l", label)["items"]) == 2


def test_the_leaders_node_is_lost_with_a_rank_on_it(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """By the chart's defaults: the standby takes over, and finds the rank's node silent."""
    upgrade(kind_cluster, 2)
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        settled()
        leader = holder(kind_cluster)
        nodes = {
            pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in operator_pods(kind_cluster)
        }
        assert len({*nodes.values()}) == 2, "each on a node of its own"
        (fault,) = (
            fault
            for fault in FAULTS[:2]  # a node is cut off, or rank 0's
            if node_of(job, f"{job.name}-0-{fault.rank}") == nodes[leader]
        )
        print(f"{fault.name}, with the leader: {recover(job, fault)}")
        assert holder(kind_cluster) != leader
        # Of two nodes the one that is left may hear nobody by then, and ends as well.
        assert job.status["failure"]["reason"] == "NodeSilent"
    gone(kind_cluster, "-n", namespace)


def ready(cluster: KindCluster) -> list[Body]:
    """Pods of the operator that are ready and stay."""
    return [
        pod
        for pod in operator_pods(cluster)
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in pod["status"].get("conditions", [])
        )
    ]
