"""A spare, or a smaller group, goes on where a pod is lost; and what may befall it then."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.cluster.kind import KindCluster
from tests.e2e import silence
from tests.e2e.install import SYSTEM, Job, gone, install, rank_processes, uninstall, wait_until
from tests.e2e.recovery import (
    FAULTS,
    SCRIPT,
    Fault,
    kill_operator,
    node_of,
    pods_of,
    preempt,
    recover,
    spare_of,
    steady_job,
)

LOST = [fault for fault in FAULTS if fault.reason in ("PodDeleted", "Evicted")]
CUT_OFF, CUT_OFF_0, STOPS = silence.FAULTS[:3]
# The scheduler hears of a node that is there again within the time.
ELASTIC = {"minNodes": 1, "replaceSeconds": 0, "growSeconds": 10}


@pytest.fixture(scope="module", autouse=True)
def installed(kind_cluster: KindCluster, operator_image: str) -> Iterator[None]:
    """The operator, where no pod of a job runs."""
    install(kind_cluster, SYSTEM, *silence.ON_CONTROL_PLANE)
    yield
    uninstall(kind_cluster)


def test_a_spare_gets_the_rank_of_a_lost_pod(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image, spares=1) as job:
        for number, fault in enumerate(LOST, start=1):
            spare, before = spare_of(job), pods_of(job)
            print(f"{fault.name}, with a spare: {recover(job, fault)}")
            assert pods_of(job) == [before[0], spare]
            status = job.status
            assert status["failure"]["reason"] == fault.reason
            assert (status["attempt"], status["round"]) == (0, number)
    gone(kind_cluster, "-n", namespace)


@pytest.mark.parametrize("without_operator", [False, True], ids=["", "operator-killed"])
def test_a_spare_gets_the_rank_of_a_silent_node(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, without_operator: bool
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image, spares=1) as job:
        spare = spare_of(job)
        silence.settled()
        (fault,) = (
            fault
            for fault in (CUT_OFF, CUT_OFF_0)
            if node_of(job, pods_of(job)[fault.rank]) != node_of(job, spare)
        )
        took = recover(job, fault, without_operator=without_operator)
        print(f"{fault.name}, with a spare: {took}")
        assert pods_of(job)[fault.rank] == spare
        status = job.status
        assert (status["failure"]["reason"], status["attempt"]) == ("NodeSilent", 0)
    gone(kind_cluster, "-n", namespace)


def test_a_preempted_spare_costs_the_group_nothing(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image, spares=1) as job, ExitStack() as undo:
        spare, before = spare_of(job), pods_of(job)
        preempt(job, spare, undo)
        wait_until(lambda: spare not in job.pods(), 60, "end of the spare")
        job.until(lambda status: status["nodes"]["spares"] == 0, 60, "loss of the spare")
        assert spare_of(job) == f"{job.name}-0-s2"
        status = job.status
        assert (status["attempt"], status["round"], status["restarts"]) == (0, 0, 0)
        assert pods_of(job) == before
    gone(kind_cluster, "-n", namespace)


def test_a_smaller_group_goes_on_and_gets_larger_again(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """Also where the operator dies before the group gets larger."""
    with steady_job(kind_cluster, namespace, foreign_image, elastic=ELASTIC) as job:
        stays = pods_of(job)[0]
        for number, fault in enumerate(LOST, start=1):
            print(f"{fault.name}, elastic: {recover(job, fault)}")
            assert job.status["nodes"]["desired"] == 1
            if number == 2:
                spare_of(job)
                kill_operator(kind_cluster)
            job.until(lambda status: status["nodes"]["desired"] == 2, 180, "larger group")
            status = job.in_state("Running")
            assert pods_of(job) == [stays, f"{job.name}-0-s{number}"]
            assert (status["attempt"], status["round"]) == (0, 2 * number)
        reasons = [past["reason"] for past in status["history"]]
        assert reasons == ["PodDeleted", "GroupResized", "Evicted", "GroupResized"]
    gone(kind_cluster, "-n", namespace)


@pytest.mark.parametrize("fault", [CUT_OFF_0, STOPS], ids=lambda fault: fault.name)
def test_a_node_comes_back_and_falls_silent_again(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, fault: Fault
) -> None:
    """Its ranks have ended, or end as soon as they can do anything; a new pod gets a rank."""
    with steady_job(kind_cluster, namespace, foreign_image, elastic=ELASTIC) as job:
        for turn in (1, 2):
            silence.settled()
            name = pods_of(job)[fault.rank]
            node, uid = node_of(job, name), job.pods()[name]["metadata"]["uid"]

            def left(node: str = node, uid: str = uid) -> list[str]:
                return rank_processes(kind_cluster, node, uid, SCRIPT.name)

            def look(left: Callable[[], list[str]] = left) -> None:
                assert fault.freezes or not left()

            took = recover(job, fault, look=look, without_operator=turn == 2)
            print(f"{fault.name}, elastic: {took}")
            status = job.status
            assert status["failure"]["reason"] == "NodeSilent", status["failure"]
            assert name not in pods_of(job)
            wait_until(lambda: not left(), 60, "end of the lost pod's ranks")
            job.until(lambda status: status["nodes"]["desired"] == 2, 240, "larger group")
            status = job.in_state("Running")
            assert (status["attempt"], status["round"]) == (0, 2 * turn)
            assert status["budget"]["charged"] == 0
    gone(kind_cluster, "-n", namespace)


def test_two_pods_of_three_are_lost_at_once(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    with steady_job(kind_cluster, namespace, foreign_image, nnodes=3, elastic=ELASTIC) as job:
        last = pods_of(job)[2]
        both = replace(LOST[0], happens=lambda job, pod, undo: delete_all(job, pods_of(job)[:2]))
        print(f"two pods are deleted, elastic: {recover(job, both)}")
        assert pods_of(job)[0] == last
        job.until(lambda status: status["nodes"]["desired"] == 3, 180, "larger group")
        status = job.in_state("Running")
        assert (status["attempt"], status["budget"]["charged"]) == (0, 0)
    gone(kind_cluster, "-n", namespace)


def delete_all(job: Job, pods: Sequence[str]) -> None:
    """`kubectl delete pods`."""
    job.cluster.kubectl("delete", "pods", *pods, "-n", job.namespace, "--wait=false")
