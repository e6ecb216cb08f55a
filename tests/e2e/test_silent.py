"""A node that nobody hears is left, and no other one."""

import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster.kind import KindCluster
from tests.e2e.install import SYSTEM, Job, gone, install, rank_processes, uninstall, wait_until
from tests.e2e.recovery import SCRIPT, Fault, node_of, recover, steady_job
from tests.e2e.silence import FAULTS, ON_CONTROL_PLANE, TIMEOUT, both_ways, cut_off, settled

# One of each kind: each takes a minute. `make bench-recovery` has all of them.
TRIED = FAULTS if os.environ.get("DDPJOB_SILENCES") == "all" else FAULTS[::3]


@pytest.fixture(scope="module", autouse=True)
def installed(kind_cluster: KindCluster, operator_image: str) -> Iterator[None]:
    """The operator, where no pod of a job runs."""
    install(kind_cluster, SYSTEM, *ON_CONTROL_PLANE)
    yield
    uninstall(kind_cluster)


def step(job: Job) -> int:
    """The last step that its status has."""
    return int(job.status["progress"]["step"])


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.gate if fault is TRIED[0] else ()) for fault in TRIED],
    ids=lambda fault: fault.name,
)
def test_a_silent_node_is_left_at_once(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, fault: Fault
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        settled()
        name = f"{job.name}-0-{fault.rank}"
        node, uid = node_of(job, name), job.pods()[name]["metadata"]["uid"]

        def left() -> list[str]:
            return rank_processes(kind_cluster, node, uid, SCRIPT.name)

        def look() -> None:
            assert fault.freezes or not left()

        took = recover(job, fault, look=look)
        print(f"{fault.name}: {took}")
        status = job.status
        assert status["failure"]["reason"] == "NodeSilent", status["failure"]
        assert (status["attempt"], status["round"], status["budget"]["charged"]) == (0, 1, 0)
        assert node not in {node_of(job, pod) for pod in job.pods()}
        wait_until(lambda: not left(), 60, "end of the lost pod's ranks")
        again = job.status
        assert (again["attempt"], again["restarts"]) == (0, 1), again
    gone(kind_cluster, "-n", namespace)


def test_what_is_over_soon_costs_nothing(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    # TCP takes its time after a pause.
    with steady_job(kind_cluster, namespace, foreign_image, hang_seconds=0) as job:
        settled()
        for rank in (0, 1):
            with cut_off(kind_cluster, node_of(job, f"{job.name}-0-{rank}"), *both_ways):
                time.sleep(TIMEOUT / 3)  # and what cutting off takes, on a busy machine
            settled()
        _goes_on(job)


def _goes_on(job: Job) -> None:
    """The first attempt's training makes steps, as if nothing had happened."""
    before = step(job)
    status = job.until(lambda status: status["progress"]["step"] > before, 60, "step")
    assert (status["attempt"], status["round"], status["restarts"]) == (0, 0, 0), status
    assert status["state"] == "Running"
