"""A job outlives whatever befalls it, and counts what it must."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.kind import KindCluster
from tests.e2e.install import EXAMPLES, Job, gone, operator_pods, wait_until
from tests.e2e.networkpolicy import is_enforced, lets_in
from tests.e2e.recovery import FAULTS, pods_of, recover, steady_job

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("without_operator", [False, True], ids=["", "operator-killed"])
def test_the_ranks_train_again_after_every_fault(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, without_operator: bool
) -> None:
    charged, attempt, number, reasons = 0, 0, 0, list[str]()
    with steady_job(kind_cluster, namespace, foreign_image) as job:
        for count, fault in enumerate(FAULTS, start=1):
            pod = pods_of(job)[1]
            before = attempt, number
            took = recover(job, fault, without_operator=without_operator)
            print(f"{fault.name}: {took}")
            status = job.status
            failure = status["failure"]
            reasons.append(failure["reason"])
            # A pod that goes while no operator looks takes its reason with it.
            unseen = without_operator and not fault.charged and reasons[-1] == "ResultUnknown"
            assert failure["reason"] == fault.reason or unseen, failure
            if fault.reason != "NodeLost" and not unseen:  # both pods may have been there
                assert failure["pod"] == pod, failure
                assert failure["rank"] == 1 and failure["node"], failure
            charged += fault.charged
            attempt, number = status["attempt"], status["round"]
            stays = fault.in_place or fault.replaced and not unseen
            expected = (before[0], before[1] + 1) if stays else (before[0] + 1, 0)
            assert (status["restarts"], attempt, number) == (count, *expected)
            assert status["budget"]["charged"] == charged
            if fault.charged:
                assert job.logs(failure["pod"]), "readable until the next failure"
        assert [past["reason"] for past in status["history"]] == reasons
    gone(kind_cluster, "-n", namespace)


def test_a_suspended_training_goes_on_where_it_was(
    kind_cluster: KindCluster, namespace: str, trainer_image: str, tmp_path: Path
) -> None:
    kind_cluster.shared_claim(namespace, "ckpt")
    spec = yaml.safe_load((EXAMPLES / "digits-checkpoint.yaml").read_text())["spec"]
    spec["args"][spec["args"].index("--epochs") + 1] = "100"
    job = Job.from_spec(kind_cluster, namespace, "pausing", **spec)
    first = f"{job.name}-0-0"
    wait_until(lambda: "step" in job.logs_if_any(first), 300, "step")
    followed = tmp_path / "log"
    with kind_cluster.following(followed, "-n", namespace, first):  # it goes with the pod
        wait_until(lambda: "step" in followed.read_text(), 60, "step in the followed log")
        job.patch(suspend=True)
        status = job.in_state("Suspended")
    last = re.search(r"stopped by SIGTERM after step (\d+)/", followed.read_text())
    assert last, followed.read_text()
    assert job.pods() == {} and status["budget"]["charged"] == 0 and status["restarts"] == 0
    job.patch(suspend=False)
    status = job.in_state("Succeeded", 600)
    assert [past["reason"] for past in status["history"]] == ["Suspended", "Succeeded"]
    log = job.logs(f"{job.name}-1-0")
    resumed = re.search(r"resuming from \S*?(\d+)", log)
    assert resumed and int(resumed[1]) == int(last[1]) > 0, log
    job.delete()
    gone(kind_cluster, "-n", namespace)


def test_a_deadline_keeps_the_logs_and_the_job_goes_when_its_time_is_over(
    kind_cluster: KindCluster, namespace: str, train: Callable[..., Job]
) -> None:
    job = train("late", 100_000, activeDeadlineSeconds=25)
    status = job.in_state("Failed", 120)
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    assert reasons["Failed"] == "DeadlineExceeded" and "failure" not in status
    wait_until(
        lambda: all(pod["status"]["phase"] == "Failed" for pod in job.pods().values()), 90, "end"
    )
    assert len(job.pods()) == 2, "none was deleted"
    assert "ddpjob-agent" in job.logs("late-0-0")
    job.patch(ttlSecondsAfterFinished=1)
    gone(kind_cluster, "-n", namespace)


def test_a_sidecar_ends_with_the_trainer_and_the_pod_stays(
    train: Callable[..., Job], foreign_image: str
) -> None:
    sleep = ["python3", "-c", "import time; time.sleep(3600)"]
    sidecar = {"name": "side", "image": foreign_image, "command": sleep}
    template = {"spec": {"containers": [sidecar]}}
    job = train("beside", 3, nnodes=1, terminationGracePeriodSeconds=1, template=template)
    job.in_state("Succeeded", 120)
    wait_until(lambda: job.pods()["beside-0-0"]["status"]["phase"] == "Failed", 90, "end")
    assert job.pods()["beside-0-0"]["status"]["reason"] == "DeadlineExceeded"
    assert "loss" in job.logs("beside-0-0")


PROBE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("reached")
except OSError as error:
    print("not reached", error)
"""
PORTS = (29499, 29500)


def test_strangers_do_not_reach_the_ranks(
    kind_cluster: KindCluster, namespace: str, foreign_image: str, train: Callable[..., Job]
) -> None:
    """Where the network enforces policies, by trying; else by what the policy means."""
    job = train("guarded", 100_000)
    wait_until(lambda: job.columns()["STEP"], 300, "STEP, so the operator gets through")
    first, second = (job.pods()[f"guarded-0-{rank}"] for rank in (0, 1))
    ours = kind_cluster.get("networkpolicies", "-n", namespace)["items"]
    kind_cluster.kubectl(
        *("run", "stranger", "-n", namespace, f"--image={foreign_image}", "--restart=Never"),
        *("--command", "--", "sleep", "600"),
    )
    where = ("pod/stranger", "-n", namespace)
    kind_cluster.kubectl("wait", "--for=condition=Ready", *where, "--timeout=60s")
    enforced = is_enforced(kind_cluster)
    print("enforced by the network" if enforced else "not enforced here; judged by its meaning")

    def reached(port: int) -> bool:
        if not enforced:
            stranger = kind_cluster.get("pod", "stranger", "-n", namespace)
            return all(lets_in(kind_cluster, p, first, stranger, port) for p in ours)
        address = first["status"]["podIP"]
        probe = ("python3", "-c", PROBE, address, str(port))
        return (
            kind_cluster.kubectl("exec", "-n", namespace, "stranger", "--", *probe) == "reached\n"
        )

    assert not any(map(reached, PORTS))
    operator = operator_pods(kind_cluster)[0]
    assert [lets_in(kind_cluster, ours[0], first, operator, port) for port in PORTS] == [
        True,
        False,
    ]
    assert all(lets_in(kind_cluster, ours[0], first, second, port) for port in PORTS)
    kind_cluster.kubectl("delete", "networkpolicies", "-n", namespace, "--all")
    ours = []
    wait_until(lambda: all(map(reached, PORTS)), 30, "way without a policy")
    kind_cluster.kubectl("delete", *where, "--grace-period=0", "--force")
    job.delete()
    gone(kind_cluster, "-n", namespace)
