"""A spare, or a smaller group, goes on where a pod is lost; and what may befall it then."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.agentpod import without_rank
from tests.cluster.kind import KindCluster
from tests.e2e import silence
from tests.e2e.install import (
    SYSTEM,
    Job,
    evict,
    gone,
    install,
    rank_processes,
    uninstall,
    wait_until,
)
from tests.e2e.recovery import (
    APART,
    CPU_MILLIS,
    FAULTS,
    MOUNT,
    SCRIPT,
    TEMPLATE,
    VOLUME,
    Fault,
    kill_operator,
    node_of,
    pods_of,
    preempt,
    recover,
    spare_of,
    steady_job,
)
from tests.trainer.saving import TRAINER, steps

LOST = [fault for fault in FAULTS if fault.reason in ("PodDeleted", "Evicted")]
CUT_OFF, CUT_OFF_0, STOPS = silence.FAULTS[:3]
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
                kill_operator(kind_cluster)
            job.until(lambda status: status["nodes"]["desired"] == 2, 180, "larger group")
            status = job.in_state("Running")
            assert pods_of(job) == [stays, f"{job.name}-0-s{number}"]
            assert (status["attempt"], status["round"]) == (0, 2 * number)
        reasons = [past["reason"] for past in status["history"]]
        assert reasons == ["PodDeleted", "GroupResized", "Evicted", "GroupResized"]
    gone(kind_cluster, "-n", namespace)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((CUT_OFF_0, CUT_OFF), id="it is cut off"),
        pytest.param((STOPS, STOPS), id="it stops"),
    ],
)
def test_a_node_comes_back_and_falls_silent_again(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, faults: Sequence[Fault]
) -> None:
    """Its ranks have ended, or end as soon as they can do anything; a new pod waits for the node.

    The pod of rank 1 is the new one when the node falls silent again, and the operator dies.
    """
    apart = {"spec": {"topologySpreadConstraints": [APART]}}
    with steady_job(kind_cluster, namespace, foreign_image, template=apart, elastic=ELASTIC) as job:
        lost = list[str]()
        for turn, fault in enumerate(faults, start=1):
            silence.settled()
            name = pods_of(job)[fault.rank]
            node, uid = node_of(job, name), job.pods()[name]["metadata"]["uid"]
            lost.append(node)

            def left(node: str = node, uid: str = uid) -> list[str]:
                return rank_processes(kind_cluster, node, uid, SCRIPT.name)

            def look(fault: Fault = fault, left: Callable[[], list[str]] = left) -> None:
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
        assert len({*lost}) == 1, "the same node twice"
    gone(kind_cluster, "-n", namespace)


def test_two_nodes_of_three_fall_silent_at_once(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """One is rank 0's, and nobody else knows of the other one."""
    control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
    apart = {"spec": {"topologySpreadConstraints": [APART], "tolerations": [control_plane]}}
    with steady_job(
        kind_cluster, namespace, foreign_image, nnodes=3, template=apart, elastic=ELASTIC
    ) as job:
        # The control plane has yet to pull the image, and the others may have begun without it.
        job.until(lambda status: status["nodes"]["running"] == 3, 300, "third node")
        silence.settled()
        workers = kind_cluster.workers()
        pods = [pod for pod in pods_of(job) if node_of(job, pod) in workers]
        (stays,) = {*pods_of(job)} - {*pods}

        def happens(job: Job, pod: str, undo: ExitStack) -> None:
            for each in pods:
                CUT_OFF.happens(job, each, undo)

        print(f"two nodes, elastic: {recover(job, replace(CUT_OFF, happens=happens))}")
        status = job.status
        assert (status["attempt"], status["nodes"]["desired"]) == (0, 1)
        assert pods_of(job)[0] == stays
        job.until(lambda status: status["nodes"]["desired"] == 3, 300, "larger group")
        assert job.in_state("Running")["attempt"] == 0
    gone(kind_cluster, "-n", namespace)


def test_two_pods_of_three_are_deleted_at_once(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    def happens(job: Job, pod: str, undo: ExitStack) -> None:
        both = pods_of(job)[:2]
        job.cluster.kubectl("delete", "pods", *both, "-n", job.namespace, "--wait=false")

    with steady_job(kind_cluster, namespace, foreign_image, nnodes=3, elastic=ELASTIC) as job:
        last = pods_of(job)[2]
        print(f"two pods, elastic: {recover(job, replace(LOST[0], happens=happens))}")
        assert pods_of(job)[0] == last
        job.until(lambda status: status["nodes"]["desired"] == 3, 180, "larger group")
        status = job.in_state("Running")
        assert (status["attempt"], status["budget"]["charged"]) == (0, 0)
    gone(kind_cluster, "-n", namespace)


def test_a_loss_is_borne_where_no_pod_may_be_made(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """The group gets larger once one may be."""
    elastic = ELASTIC | {"replaceSeconds": 15}
    few = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "1"}}}
    few["metadata"] = {"name": "few", "namespace": namespace}

    def happens(job: Job, pod: str, undo: ExitStack) -> None:
        LOST[0].happens(job, pod, undo)
        job.until(lambda status: "quota" in str(status["conditions"]), 60, "refusal")

    with steady_job(kind_cluster, namespace, foreign_image, elastic=elastic) as job:
        stays = pods_of(job)[1]
        kind_cluster.apply(few)
        of_it = ("resourcequota", "few", "-n", namespace)
        wait_until(lambda: kind_cluster.get(*of_it).get("status", {}).get("used"), 60, "quota")
        recover(job, replace(LOST[0], happens=happens, rank=0))
        assert (job.status["nodes"]["desired"], pods_of(job)[0]) == (1, stays)
        kind_cluster.kubectl("delete", *of_it)
        job.until(lambda status: status["nodes"]["desired"] == 2, 240, "larger group")
        status = job.in_state("Running")
        assert (status["attempt"], status["budget"]["charged"]) == (0, 0)
    gone(kind_cluster, "-n", namespace)


def test_the_pod_that_has_the_checkpoint_is_replaced_and_another_swapped(
    kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    volume = {"persistentVolumeClaim": {"claimName": "disk"}}
    checkpoint = {"mountOn": "Rank0", "volume": volume}
    with steady_job(kind_cluster, namespace, foreign_image, spares=1, checkpoint=checkpoint) as job:
        spare, new = spare_of(job), f"{job.name}-0-0-r1"
        stays = pods_of(job)[1]
        recover(job, replace(LOST[0], rank=0))
        assert pods_of(job) == [new, stays]
        recover(job, LOST[0])
        assert pods_of(job) == [new, spare]
        have = [pod for pod, found in job.pods().items() if str(volume)[1:-1] in str(found["spec"])]
        assert have == [new]
        assert job.status["attempt"] == 0
    gone(kind_cluster, "-n", namespace)


def test_an_evicted_rank_loses_no_step_of_an_unchanged_script(
    kind_cluster: KindCluster, namespace: str, trainer_images: list[str]
) -> None:
    """It saves within the pod's grace, since it uses transformers' Trainer."""
    text = TRAINER.replace("BEFORE", "").replace("OPTIONS", "{}")
    text = text.replace('"out"', '"/checkpoints/out"')
    kind_cluster.shared_claim(namespace, "disk")
    script = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"train.py": text}}
    script["metadata"] = {"name": "script", "namespace": namespace}
    kind_cluster.apply(script)
    job = Job.from_spec(
        kind_cluster,
        namespace,
        "notice",
        image=trainer_images[-1],
        nnodes=2,
        args=["/script/train.py"],
        resources={"requests": {"cpu": f"{CPU_MILLIS}m"}},
        checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "disk"}}},
        volumes=[VOLUME],
        volumeMounts=[MOUNT],
        template=TEMPLATE,
    )
    kept = f"{job.name}-0-0"

    def said(number: int) -> list[tuple[int, float]]:
        log = "\n".join(map(without_rank, job.logs_if_any(kept).splitlines()))
        return steps(log, number)

    wait_until(lambda: len(said(0)) > 50, 300, "steps")
    evict(kind_cluster, namespace, f"{job.name}-0-1")
    wait_until(lambda: said(1), 120, "step after the eviction")
    (last, place), (first, again) = said(0)[-1], said(1)[0]
    assert first == last + 1 and again > place
    status = job.status
    assert (status["failure"]["reason"], status["budget"]["charged"]) == ("Evicted", 0)
    job.delete()
    gone(kind_cluster, "-n", namespace)
