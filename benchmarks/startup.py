"""`python -m benchmarks.startup`: from running pods to the first step, and docs/startup.md.

The same script in the same image on the same two nodes of a kind cluster, as a DDPJob and in pods
that run torchrun as people write them by hand. The two take turns.
Exit codes: 0 measured, 1 slower than demanded or an error.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median, quantiles

from benchmarks.report import table
from ddpjob.json_depth import Body
from ddptrain.compare.machine import count_cores, count_gpus, examine
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e.install import Job, install, wait_until

PAGE = ROOT / "docs" / "startup.md"
SCRIPT = ROOT / "benchmarks" / "scripts" / "first_step.py"
OPERATOR_IMAGE, TRAINER_IMAGE = "ddpjob/operator:0.1.0", "ddpjob/trainer:0.1.0"
NAMESPACE = "ddpjob-startup"
NODES = 2
ROUNDS = 10
START_SECONDS = 400  # a start that takes so long has failed
MOST = 1.3  # times as long as with torchrun alone
PHASES = {
    "container": "kubectl apply → all containers run",
    "script": "… → the script begins on all ranks",
    "torch": "… → torch imported",
    "group": "… → all ranks joined",
    "step": "… → first step done",
}
Times = Mapping[str, float]


@dataclass(frozen=True)
class Start:
    """When the last rank reached each of PHASES, in seconds since the epoch."""

    applied: float
    reached: Times

    @classmethod
    def of(cls, applied: float, ranks: Sequence[Times]) -> "Start":
        """From what each rank printed."""
        return cls(applied, {phase: max(rank[phase] for rank in ranks) for phase in PHASES})

    @property
    def seconds(self) -> float:
        """From the moment in which all containers run to the end of the first step."""
        return self.reached["step"] - self.reached["container"]

    @property
    def lengths(self) -> dict[str, float]:
        """Seconds of each phase."""
        times = [self.applied, *self.reached.values()]
        pairs = zip(times, times[1:], strict=False)
        return dict(zip(PHASES, (after - before for before, after in pairs), strict=True))


def with_torchrun(cluster: KindCluster, name: str, nproc: int) -> Start:
    """A headless Service and pods with torchrun as their command."""
    applied = time.time()
    cluster.apply(*bare_pods(name, nproc, cluster.workers()))
    try:
        pods = [f"{name}-{index}" for index in range(NODES)]
        done = ("--for=jsonpath={.status.phase}=Succeeded", f"--timeout={START_SECONDS}s")
        wait = ("wait", "-n", NAMESPACE, *done, *(f"pod/{pod}" for pod in pods))
        try:
            cluster.kubectl(*wait, timeout_seconds=START_SECONDS + 30)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{cluster.dump(NAMESPACE)}") from None
        return Start.of(applied, reached(cluster, pods, nproc))
    finally:
        delete(cluster, f"service/{name}", *(f"pod/{name}-{index}" for index in range(NODES)))


def bare_pods(name: str, nproc: int, nodes: Sequence[str]) -> list[Body]:
    """One pod for each node, and the Service that gives them names."""
    head = {"apiVersion": "v1", "metadata": {"name": name, "namespace": NAMESPACE}}
    service = {"clusterIP": "None", "selector": {"app": name}, "publishNotReadyAddresses": True}
    found: list[Body] = [{**head, "kind": "Service", "spec": service}]
    for index in range(NODES):
        command = [
            *("torchrun", f"--nnodes={NODES}", f"--nproc-per-node={nproc}"),
            *(f"--node-rank={index}", f"--master-addr={name}-0.{name}", "--master-port=29500"),
            "/bench/first_step.py",
        ]
        container = {"name": "trainer", "image": TRAINER_IMAGE, "command": command, **mounts()}
        spec = {
            "restartPolicy": "Never",
            "hostname": f"{name}-{index}",
            "subdomain": name,
            "nodeSelector": {"kubernetes.io/hostname": nodes[index]},
            "containers": [container],
            **volumes(),
        }
        metadata = {"name": f"{name}-{index}", "namespace": NAMESPACE, "labels": {"app": name}}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


def with_ddpjob(cluster: KindCluster, name: str, nproc: int) -> Start:
    """The same as a DDPJob."""
    applied = time.time()
    job = Job.from_spec(
        cluster,
        NAMESPACE,
        name,
        image=TRAINER_IMAGE,
        nnodes=NODES,
        nprocPerNode=nproc,
        args=["/bench/first_step.py"],
        **volumes(),
        **mounts(),
    )
    try:
        job.in_state("Succeeded", START_SECONDS)
        pods = job.pods()
        nodes = {pod["spec"]["nodeName"] for pod in pods.values()}
        if len(nodes) != NODES:
            raise RuntimeError(f"{name}: both pods on {nodes}")
        return Start.of(applied, reached(cluster, list(pods), nproc))
    finally:
        job.delete()
        wait_until(lambda: not job.pods(), 60, f"end of {name}'s pods")


def mounts() -> Body:
    """Where a container finds the script."""
    return {"volumeMounts": [{"name": "bench", "mountPath": "/bench", "readOnly": True}]}


def volumes() -> Body:
    """Where a pod finds the script."""
    return {"volumes": [{"name": "bench", "configMap": {"name": "bench"}}]}


def reached(cluster: KindCluster, pods: Sequence[str], nproc: int) -> list[Times]:
    """What each rank printed. Raises RuntimeError where a rank printed nothing."""
    lines = [
        line.partition("reached ")[2]
        for pod in pods
        for line in cluster.kubectl("logs", "-n", NAMESPACE, pod).splitlines()
    ]
    ranks = {times["rank"]: times for times in map(json.loads, filter(None, lines))}
    if sorted(ranks) != list(range(NODES * nproc)):
        raise RuntimeError(f"ranks {sorted(ranks)} of {NODES} × {nproc} printed their times")
    return list(ranks.values())


def delete(cluster: KindCluster, *names: str) -> None:
    """Delete and wait; what a pod leaves behind would take its share of the next one's cores."""
    cluster.kubectl("delete", "-n", NAMESPACE, "--wait", "--ignore-not-found", *names)


def measure(cluster: KindCluster, nproc: int, rounds: int) -> list[tuple[Start, Start]]:
    """Pairs of torchrun and DDPJob, after one pair that does not count."""
    pairs = []
    for number in range(rounds + 1):
        name = f"n{nproc}-{number}"
        pair = with_torchrun(cluster, f"bare-{name}", nproc), with_ddpjob(cluster, name, nproc)
        print(
            f"{NODES} x {nproc}, {number}/{rounds}: torchrun {pair[0].seconds:.2f} s, "
            f"DDPJob {pair[1].seconds:.2f} s",
            file=sys.stderr,
            flush=True,
        )
        if number:
            pairs.append(pair)
    return pairs


def section(nproc: int, pairs: Sequence[tuple[Start, Start]]) -> str:
    """One shape of job: the phases and their sum, in Markdown."""
    sides = list(zip(*pairs, strict=True))
    rows = [
        [said, *(spread([start.lengths[phase] for start in side]) for side in sides)]
        for phase, said in PHASES.items()
    ]
    sums = [[start.seconds for start in side] for side in sides]
    rows.append(["**all containers run → first step done**", *map(spread, sums)])
    head = f"## {NODES} pods, {nproc} process{'es' if nproc > 1 else ''} each\n\n"
    ratio = f"DDPJob over torchrun, of each pair: {spread(ratios(pairs), '')} (demand: ≤ {MOST})."
    return head + table(["", "torchrun in pods", "DDPJob"], rows) + f"\n\n{ratio}"


def ratios(pairs: Sequence[tuple[Start, Start]]) -> list[float]:
    """How many times as long the DDPJob took, of each pair."""
    return [ours.seconds / bare.seconds for bare, ours in pairs]


def spread(values: Sequence[float], unit: str = " s") -> str:
    """Median and 95th percentile."""
    high = quantiles(values, n=20, method="inclusive")[-1]
    return f"**{median(values):.2f}**{unit} ({high:.2f})"


_PAGE = """\
<!-- Generated by `make bench-startup`. Do not edit. -->
# Figures of the start

Made on {date} by `make bench-startup`: how long until the first step, and where the time goes.
Median, and in brackets the 95th percentile, of {rounds} starts of each side, which took turns.

- {machine.hardware}; a kind cluster whose {nodes} nodes share these cores
- {machine.versions}; images present on the nodes

The script is `benchmarks/scripts/first_step.py`: gloo, one linear layer, one step. It prints the
times at which it got somewhere; a phase ends when the last rank is through it. *torchrun in pods*
is a headless Service and pods with `torchrun --nnodes --node-rank --master-addr` as their command.

{sections}

What the DDPJob has more is the agent, which starts before torchrun and imports no torch.
`launcher: python` starts a pod's one process without torchrun.
"""


def page(results: Mapping[int, Sequence[tuple[Start, Start]]], rounds: int) -> str:
    """docs/startup.md."""
    return _PAGE.format(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=examine(count_cores(), count_gpus()),
        rounds=rounds,
        nodes=NODES,
        sections="\n\n".join(section(*result) for result in results.items()),
    )


def main() -> int:
    """Measure, print or write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each side ({ROUNDS})")
    parser.add_argument("--keep-cluster", action="store_true", help="use and leave the kept one")
    options = parser.parse_args()
    with KindCluster(keep=options.keep_cluster) as cluster:
        for image in (OPERATOR_IMAGE, TRAINER_IMAGE):
            cluster.load_image(image)
        install(cluster)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        cluster.create_namespace(NAMESPACE)
        cluster.kubectl("create", "configmap", "bench", "-n", NAMESPACE, f"--from-file={SCRIPT}")
        results = {nproc: measure(cluster, nproc, options.rounds) for nproc in (1, 2)}
    text = page(results, options.rounds)
    if options.write:
        PAGE.write_text(text)
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(text)
    missed = [nproc for nproc, pairs in results.items() if median(ratios(pairs)) > MOST]
    for nproc in missed:
        print(f"missed: {NODES} x {nproc} takes more than {MOST} times as long", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
