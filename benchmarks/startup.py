"""`python -m benchmarks.startup`: from running pods to the first step, and docs/startup.md.

The same script in the same image on the same two nodes of a kind cluster: in pods that run torchrun
as people write them by hand, as a DDPJob that starts cold, and as one that starts warm. The three
take turns. Then the memory of one pod, cold and warm.
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
SCRIPTS = ROOT / "benchmarks" / "scripts"
OPERATOR_IMAGE, TRAINER_IMAGE = "ddpjob/operator:0.1.0", "ddpjob/trainer:0.1.0"
NAMESPACE = "ddpjob-startup"
NODES = 2
ROUNDS = 10
START_SECONDS = 400  # a start that takes so long has failed
SIDES = ("torchrun in pods", "DDPJob, cold", "DDPJob, warm")
# Times as long as with torchrun alone.
MOST_COLD, MOST_WARM = 1.3, 0.65
RANKS = (1, 2, 4)  # of the pod whose memory is measured
HOLD_SECONDS = 300  # for which they stay after their step, at most
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


def with_ddpjob(cluster: KindCluster, name: str, nproc: int, warm: bool) -> Start:
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
        warmStart={"enabled": warm},
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


def measure(cluster: KindCluster, nproc: int, rounds: int) -> list[list[Start]]:
    """The SIDES in turn, `rounds` times, after one time that does not count."""
    found = []
    for number in range(rounds + 1):
        name = f"n{nproc}-{number}"
        starts = [
            with_torchrun(cluster, f"bare-{name}", nproc),
            with_ddpjob(cluster, f"cold-{name}", nproc, warm=False),
            with_ddpjob(cluster, f"warm-{name}", nproc, warm=True),
        ]
        said = ", ".join(
            f"{side} {start.seconds:.2f} s" for side, start in zip(SIDES, starts, strict=True)
        )
        print(f"{NODES} x {nproc}, {number}/{rounds}: {said}", file=sys.stderr, flush=True)
        if number:
            found.append(starts)
    return found


@dataclass(frozen=True)
class Memory:
    """Of all processes of a pod together, in MiB."""

    proportional: float
    """Each page is counted once, shared by those that have it (Pss)."""
    private: float
    """Pages that one process has alone."""


def memory(cluster: KindCluster, nproc: int, warm: bool) -> Memory:
    """Of a pod whose ranks have made a step and stay."""
    name = f"memory-{'warm' if warm else 'cold'}-{nproc}"
    job = Job.from_spec(
        cluster,
        NAMESPACE,
        name,
        image=TRAINER_IMAGE,
        nprocPerNode=nproc,
        args=["/bench/first_step.py", str(HOLD_SECONDS)],
        warmStart={"enabled": warm},
        **volumes(),
        **mounts(),
    )
    try:
        pod = f"{name}-0-0"

        def all_stepped() -> bool:
            said = cluster.kubectl("logs", "-n", NAMESPACE, pod, check=False)
            return said.count("reached ") == nproc

        wait_until(all_stepped, START_SECONDS, f"first step of {name}")
        inside = ("exec", "-n", NAMESPACE, pod, "--", "python3", "-S", "/bench/pod_memory.py")
        found = Memory(**json.loads(cluster.kubectl(*inside)))
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        return found
    finally:
        job.delete()
        wait_until(lambda: not job.pods(), 120, f"end of {name}'s pods")


def section(nproc: int, starts: Sequence[Sequence[Start]]) -> str:
    """One shape of job: the phases and their sum, in Markdown."""
    sides = list(zip(*starts, strict=True))
    rows = [
        [said, *(spread([start.lengths[phase] for start in side]) for side in sides)]
        for phase, said in PHASES.items()
    ]
    sums = [[start.seconds for start in side] for side in sides]
    rows.append(["**all containers run → first step done**", *map(spread, sums)])
    head = f"## {NODES} pods, {nproc} process{'es' if nproc > 1 else ''} each\n\n"
    cold, warm = (spread(ratios(starts, side), "") for side in (1, 2))
    ratio = (
        f"DDPJob over torchrun, of each turn: cold {cold} (demand: ≤ {MOST_COLD}), warm {warm} "
        f"(demand: ≤ {MOST_WARM})."
    )
    return head + table(["", *SIDES], rows) + f"\n\n{ratio}"


def ratios(starts: Sequence[Sequence[Start]], side: int) -> list[float]:
    """How many times as long as with torchrun alone this side took, of each turn."""
    return [turn[side].seconds / turn[0].seconds for turn in starts]


def memory_section(found: Mapping[int, tuple[Memory, Memory]]) -> str:
    """The memory of a pod by its ranks, in Markdown."""
    rows = [
        [
            f"{nproc}",
            *(f"{value:.0f} MiB" for side in sides for value in (side.proportional, side.private)),
        ]
        for nproc, sides in found.items()
    ]
    head = [
        "ranks in the pod",
        *(f"{s}, {k}" for s in ("cold", "warm") for k in ("Pss", "private")),
    ]
    return table(head, rows)


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
*Cold* is `warmStart.enabled: false`.

{sections}

A cold start has the agent before torchrun, which imports no torch. A warm one imports torch, and
what the first optimizer needs, once in each pod, before its script begins. That is its limit: 1.7 s
of one core, of which two pods with one process each have one. The rest is the agent's start, the
rendezvous, and what the operator and the cluster do beside it on the same cores.

## Memory of one pod

All processes of a pod after their first step: the agent, the fork server, torchrun and the ranks.
*Pss* counts a page once, however many share it; *private* are pages that one process has alone.

{memory}
"""


def page(
    results: Mapping[int, Sequence[Sequence[Start]]],
    memories: Mapping[int, tuple[Memory, Memory]],
    rounds: int,
) -> str:
    """docs/startup.md."""
    return _PAGE.format(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=examine(count_cores(), count_gpus()),
        rounds=rounds,
        nodes=NODES,
        sections="\n\n".join(section(*result) for result in results.items()),
        memory=memory_section(memories),
    )


def main() -> int:
    """Measure, print or write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each side ({ROUNDS})")
    options = parser.parse_args()
    with KindCluster() as cluster:
        for image in (OPERATOR_IMAGE, TRAINER_IMAGE):
            cluster.load_image(image)
        install(cluster)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        cluster.create_namespace(NAMESPACE)
        files = [f"--from-file={SCRIPTS / name}" for name in ("first_step.py", "pod_memory.py")]
        cluster.kubectl("create", "configmap", "bench", "-n", NAMESPACE, *files)
        results = {nproc: measure(cluster, nproc, options.rounds) for nproc in (1, 2)}
        memories = {
            nproc: (memory(cluster, nproc, warm=False), memory(cluster, nproc, warm=True))
            for nproc in RANKS
        }
    text = page(results, memories, options.rounds)
    if options.write:
        PAGE.write_text(text)
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(text)
    missed = False
    for side, most in ((1, MOST_COLD), (2, MOST_WARM)):
        for nproc, starts in results.items():
            if median(ratios(starts, side)) > most:
                where = f"{SIDES[side]}, {NODES} x {nproc}"
                print(f"missed: {where} takes more than {most} times as long", file=sys.stderr)
                missed = True
    return missed


if __name__ == "__main__":
    sys.exit(main())
