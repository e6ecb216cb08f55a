"""What befalls the jobs of a series, and how long each recovery takes."""

import sys
import time
from collections.abc import Iterator

from benchmarks.recovery import local, peer
from benchmarks.recovery.series import Place, Series
from tests.cluster.kind import KindCluster
from tests.e2e import silence
from tests.e2e.install import SYSTEM, install, leader_node, part_replicas
from tests.e2e.project import dev_job
from tests.e2e.recovery import (
    LARGER,
    Fault,
    Recovery,
    node_of,
    pods_of,
    recover,
    shrink,
    spare_of,
    steady_job,
)

NAMESPACE = "ddpjob-recovery"
SETTLE_SECONDS = 5.0  # until the nodes have heard each other, and a spare has torch


def measure(
    cluster: KindCluster | None, image: str, series: Series, rounds: int, pod_rounds: int
) -> Iterator[tuple[Fault, Recovery]]:
    """All faults of a series in turn: the first, and those without new pods, `rounds` times.

    `cluster`: None will do for a series without one.
    """
    often = [f for f in series.faults if series.is_in_place(f)] or series.faults[:1]
    times = {f: rounds if f in often else pod_rounds for f in series.faults}
    turns = [[f for f in series.faults if turn < times[f]] for turn in range(max(times.values()))]
    faults = sum(turns, [])
    for fault, found in recoveries(cluster, image, series, faults):
        print(f"{series.title}: {fault.name}: {found}", file=sys.stderr)
        yield fault, found


def recoveries(
    cluster: KindCluster | None, image: str, series: Series, faults: list[Fault]
) -> Iterator[tuple[Fault, Recovery]]:
    """Let one fault happen after the other."""
    if series.place is Place.LOCAL:
        if series.saves:
            yield from local.saves(series.saves, faults)
        else:
            yield from local.recoveries(series.strategy, faults)
        return
    assert cluster, f"{series.title} needs a cluster"
    if series.place is Place.CLUSTER:
        is_apart = series.of_nodes and not series.of_leader
        install(cluster, SYSTEM, *(silence.ON_CONTROL_PLANE if is_apart else ()))
        for group in [[fault] for fault in faults] if series.of_nodes else [faults]:
            fresh_namespace(cluster)
            with (
                dev_job(cluster, NAMESPACE, image, series.saves)
                if series.saves
                else steady_job(cluster, NAMESPACE, image, series.strategy, **series.job)
            ) as job:
                for fault in group:
                    spare = spare_of(job) if series.job.get("spares") else ""
                    job.until(lambda status: status["nodes"]["running"] == 2, 180, "both nodes")
                    # A machine may drop what nobody reads, and a start would wait for its disk.
                    cluster.on_workers(image, "python3", "-c", "import torch")
                    time.sleep(SETTLE_SECONDS)
                    if fault is LARGER:
                        shrink(job)
                    if series.of_nodes and (spare or series.of_leader):
                        nodes = [node_of(job, pod) for pod in pods_of(job)]
                        if series.of_leader:
                            part_replicas(cluster)
                            rank = nodes.index(leader_node(cluster))
                        else:
                            rank = 1 - nodes.index(node_of(job, spare))
                        fault = next(f for f in series.faults if f.rank == rank)
                    yield fault, recover(job, fault, without_operator=series.without_operator)
        return
    with peer.installed(cluster, image):
        for fault in faults:
            fresh_namespace(cluster)
            elastic = series.place is Place.ELASTIC_PYTORCHJOB
            with peer.steady_job(cluster, NAMESPACE, image, elastic=elastic) as theirs:
                time.sleep(SETTLE_SECONDS)
                yield fault, peer.recover(theirs, fault)


def fresh_namespace(cluster: KindCluster) -> None:
    """An empty one, whatever a job before has left."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    cluster.kubectl("delete", "pv", "-l", f"ddpjob-test={NAMESPACE}")  # bound to what is gone
    cluster.create_namespace(NAMESPACE)
