"""The main job on real nodes, from the files that people apply."""

import re
from collections.abc import Callable

import pytest
import yaml

from tests.cluster.kind import KindCluster
from tests.e2e.install import EXAMPLES, SYSTEM, Job, gone, signal_rank, wait_until
from tests.e2e.recovery import CPU_MILLIS

ACCURACY = re.compile(r"test accuracy (0\.\d+)")


pytestmark = pytest.mark.usefixtures("installed")


def accuracy(log: str) -> float:
    return float(ACCURACY.findall(log)[-1])


def trains(columns: dict[str, str]) -> dict[str, str] | None:
    """`columns` once rank 0 is heard and the kubelets of both have told: in either order."""
    return columns if "/" in columns["STEP"] and columns["NODES"] == "2/2" else None


@pytest.mark.gate
def test_two_pods_on_two_nodes_train_to_97_percent(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    job = Job.from_file(kind_cluster, namespace, EXAMPLES / "digits.yaml")
    seen = wait_until(lambda: trains(job.columns()), 300, "STEP of two nodes")
    assert seen["STATE"] in ("Running", "Succeeded")
    assert float(seen["LOSS"]) > 0
    job.in_state("Succeeded")
    pods = job.pods()
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2
    assert accuracy(job.logs("digits-0-0")) >= 0.97
    last = job.columns()
    assert (last["STATE"], last["NODES"], last["RESTARTS"]) == ("Succeeded", "2/2", "0")
    step, total = last["STEP"].split("/")
    assert step == total
    job.delete()
    gone(kind_cluster, "-n", namespace)


@pytest.mark.gate
def test_the_charts_own_test_trains_on_two_nodes_and_leaves_nothing(
    kind_cluster: KindCluster, trainer_image: str
) -> None:
    said = kind_cluster.helm("test", "ddpjob", "--namespace", SYSTEM, "--timeout", "180s")
    assert re.search(r"TEST SUITE: +ddpjob-test\n(.*\n)+Phase: +Succeeded", said), said
    gone(kind_cluster, "-n", SYSTEM)


def test_the_other_levels_train_as_well(
    kind_cluster: KindCluster, namespace: str, trainer_images: list[str]
) -> None:
    """One after the other: the pods of several might each get a part of the nodes and wait.

    Level 1 is `master.yaml`, whose rank 0 has another image than its workers.
    """
    pods = {}
    for name in ("digits-accelerate", "digits-hf", "master"):
        spec = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
        # Two pods of a whole CPU do not fit on a node of two beside a replica of the operator.
        for part in (spec, *([spec["master"]] if "master" in spec else [])):
            part["resources"]["requests"] = {"cpu": f"{CPU_MILLIS}m"}
        job = Job.from_spec(kind_cluster, namespace, name, **spec)
        job.in_state("Succeeded", 300)
        assert accuracy(job.logs(f"{name}-0-0")) >= 0.97
        pods = job.pods()
        job.delete()
        gone(kind_cluster, "-n", namespace)
    images = {
        name: pod["spec"]["containers"][0]["image"].rpartition("/")[2] for name, pod in pods.items()
    }
    assert images == {
        "master-0-0": "trainer:0.1.0-accelerate",
        "master-0-1": "trainer:0.1.0",
        "master-0-2": "trainer:0.1.0",
    }


@pytest.mark.gate
def test_a_killed_rank_costs_one_restart_and_no_progress(
    kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    kind_cluster.shared_claim(namespace, "ckpt")
    job = Job.from_file(kind_cluster, namespace, EXAMPLES / "digits-checkpoint.yaml")
    first = f"{job.name}-0-1"
    job.in_state("Running")
    wait_until(lambda: "saved /checkpoints/" in job.logs(f"{job.name}-0-0"), 120, "checkpoint")
    signal_rank(job, first, "KILL", "ddptrain")
    status = job.until(lambda status: status["restarts"] == 1, 120, "restart")
    assert status["failure"]["signal"] == "SIGKILL" and status["failure"]["rank"] == 1
    assert status["failure"]["pod"] == first and status["failure"]["node"]
    status = job.in_state("Succeeded", 300)
    assert (status["restarts"], status["attempt"], status["round"]) == (1, 0, 1)
    assert [past["charged"] for past in status["history"]] == [True, False]
    assert status["budget"]["charged"] == 0, "it got further than before"
    assert "SIGKILL" in job.logs(first) or "signal" in job.logs(first).lower()
    log = job.logs(f"{job.name}-0-0")
    resumed = re.search(r"resuming from \S*?(\d+)", log)
    assert resumed and int(resumed[1]) > 0, log
    assert accuracy(log) >= 0.97
    job.delete()
    gone(kind_cluster, "-n", namespace)


def test_a_foreign_image_shows_its_steps_without_a_line_of_code(
    train: Callable[..., Job],
) -> None:
    job = train("foreign", 300)
    first = wait_until(lambda: job.columns()["STEP"], 300, "STEP")
    wait_until(lambda: int(job.columns()["STEP"]) > int(first), 60, "later STEP")
    assert job.columns()["LOSS"] == ""
    status = job.in_state("Succeeded")
    assert status["progress"] | {"updatedAt": "", "firstStep": 1} == {
        "attempt": 0,
        "round": 0,
        "step": 300,
        "firstStep": 1,
        "source": "counted",
        "metrics": [],
        "updatedAt": "",
    }
    assert "world 2" in job.logs("foreign-0-0")
