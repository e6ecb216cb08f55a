"""A node that nobody hears is left, and no other one."""

import time
from collections.abc import Iterator

import pytest

from tests.cluster.kind import KindCluster
from tests.e2e.install import (
    SYSTEM,
    Job,
    gone,
    install,
    operator_pods,
    rank_processes,
    uninstall,
    wait_until,
)
from tests.e2e.recovery import SCRIPT, Fault, recover, steady_job
from tests.e2e.silence import FAULTS, ON_CONTROL_PLANE, both_ways, cut_off, node_of

TIMEOUT = 15  # s; nodeTimeoutSeconds by default


@pytest.fixture(scope="module", autouse=True)
def installed(kind_cluster: KindCluster, operator_image: str) -> Iterator[None]:
    """The operator, where no pod of a job runs."""
    install(kind_cluster, SYSTEM, *ON_CONTROL_PLANE)
    yield
    uninstall(kind_cluster)


def step(job: Job) -> int:
    """The last step that its status has."""
    return int(job.status["progress"]["step"])


def test_a_silent_node_is_left_at_once(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        for count, fault in enumerate(FAULTS, start=1):
            attempt = job.status["attempt"]
            pods = job.pods()
            name = f"{job.name}-{attempt}-{fault.rank}"
            node, uid = node_of(job, name), pods[name]["metadata"]["uid"]

            def look(node: str = node, uid: str = uid, fault: Fault = fault) -> None:
                left = rank_processes(kind_cluster, node, uid, SCRIPT.name)
                assert not left or "stop" in fault.name or "paused" in fault.name, (fault, left)

            took = recover(job, fault, look=look)
            print(f"{fault.name}: {took}")
            status = job.status
            failure = status["failure"]
            assert failure["reason"] == "NodeSilent", (fault.name, failure)
            assert (status["attempt"], status["restarts"]) == (count, count), fault.name
            assert status["budget"]["charged"] == 0

            def ended(node: str = node, uid: str = uid) -> bool:
                return not rank_processes(kind_cluster, node, uid, SCRIPT.name)

            wait_until(ended, 60, f"end of the lost pod's ranks: {fault.name}")
        assert len({node_of(job, pod) for pod in job.pods()}) <= 2
    gone(kind_cluster, "-n", namespace)


def test_what_is_over_soon_costs_nothing(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        for rank in (0, 1):
            with cut_off(kind_cluster, node_of(job, f"{job.name}-0-{rank}"), *both_ways):
                time.sleep(TIMEOUT / 2)
        _goes_on(job)


def test_an_operator_that_is_cut_off_blames_nobody(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        (operator,) = operator_pods(kind_cluster)
        node, address = operator["spec"]["nodeName"], operator["status"]["podIP"]
        # It reaches the API server on its own node, and no agent.
        cut = ("-t", "mangle", "POSTROUTING", "-s", address, "-o", "eth0", "-j", "DROP")
        with cut_off(kind_cluster, node, cut):
            time.sleep(3 * TIMEOUT)
        _goes_on(job)


def _goes_on(job: Job) -> None:
    """The first attempt's training makes steps, as if nothing had happened."""
    before = step(job)
    status = job.until(lambda status: status["progress"]["step"] > before, 60, "step")
    assert (status["attempt"], status["round"], status["restarts"]) == (0, 0, 0), status
    assert status["state"] == "Running"
