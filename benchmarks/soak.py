"""`python -m benchmarks.soak`: no node counts as silent on a machine that has no time to spare.

Three jobs of two nodes train on a kind cluster, beside as many busy processes as it takes to
keep every core busy many times over; the agents have to wait for their turn like everybody else.
Every second each agent is asked for how long it has not heard rank 0.
Exit codes: 0 nobody was taken for silent, 1 somebody was, or an error.
"""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from statistics import quantiles

from tests.cluster.kind import KindCluster
from tests.e2e.install import Job, install
from tests.e2e.recovery import SCRIPT

OPERATOR_IMAGE, FOREIGN_IMAGE = "ddpjob/operator:0.1.0", "ddpjob-test/foreign:0.1.0"
NAMESPACE = "ddpjob-soak"
JOBS, TIMEOUT = 3, 15
BUSY_PER_CORE = 4  # on each of two nodes
LOOK_SECONDS = 1.0
START_SECONDS = 600.0


def begin(cluster: KindCluster, image: str) -> list[Job]:
    """The jobs, once all of them train."""
    cluster.kubectl("create", "configmap", "script", "-n", NAMESPACE, f"--from-file={SCRIPT}")
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {},
    }
    jobs = [
        Job.from_spec(
            cluster,
            NAMESPACE,
            f"soak-{number}",
            image=image,
            nnodes=2,
            args=[f"/script/{SCRIPT.name}"],
            resources={"limits": {"memory": "1Gi"}, "requests": {"cpu": "10m"}},
            nodeTimeoutSeconds=TIMEOUT,
            volumes=[{"name": "script", "configMap": {"name": "script"}}],
            volumeMounts=[{"name": "script", "mountPath": "/script", "readOnly": True}],
            template={"spec": {"topologySpreadConstraints": [spread]}},
        )
        for number in range(JOBS)
    ]
    for job in jobs:
        job.until(lambda status: (status.get("progress") or {}).get("step"), START_SECONDS, "step")
    return jobs


def load(cluster: KindCluster, image: str, stack: ExitStack) -> int:
    """Keep all cores busy; the number of busy processes."""
    count = BUSY_PER_CORE * (os.cpu_count() or 1)
    for node in cluster.workers():
        name = f"busy-{node}"
        busy = (
            "import os\n"
            f"for _ in range({count}):\n"
            "    if not os.fork():\n"
            "        while True: pass\n"
            "os.wait()"
        )
        container = {"name": "main", "image": image, "command": ["python3", "-c", busy]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": node,
                "containers": [container],
                "terminationGracePeriodSeconds": 0,
            },
        }
        cluster.apply(pod)
        stack.callback(cluster.kubectl, "delete", "pod", name, "-n", NAMESPACE, "--wait=false")
    return count * len(cluster.workers())


def ages(cluster: KindCluster, addresses: list[str]) -> list[float]:
    """For how long each agent has not heard rank 0; of those that answer."""
    control = next(node for node in cluster.nodes() if "control" in node)
    urls = [f"http://{address}:29499/progress" for address in addresses]
    said = cluster.on_node(control, "curl", "-s", "-m", "5", *urls, check=False)
    found, decoder = [], json.JSONDecoder()
    while said.strip():
        try:
            page, end = decoder.raw_decode(said.lstrip())
        except ValueError:
            break
        found.append(float(page.get("unheard_seconds", 0.0)))
        said = said.lstrip()[end:]
    return found


def soak(cluster: KindCluster, image: str, minutes: float) -> bool:
    """Train for so long under load; whether nobody was taken for silent."""
    with ExitStack() as stack:
        jobs = begin(cluster, image)
        addresses = [pod["status"]["podIP"] for job in jobs for pod in job.pods().values()]
        busy = load(cluster, image, stack)
        steps = [int(job.status["progress"]["step"]) for job in jobs]
        seen, until = list[float](), time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            seen += ages(cluster, addresses)
            time.sleep(LOOK_SECONDS)
        ended = [job.status for job in jobs]
        made = sum(int(status["progress"]["step"]) for status in ended) - sum(steps)
        restarts = sum(status["restarts"] for status in ended)
        print(
            f"{minutes:g} minutes, {JOBS} jobs of 2 nodes beside {busy} busy processes on "
            f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.0f}: {made} steps, "
            f"{restarts} restarts\n"
            f"an agent had not heard rank 0 for {max(seen):.1f} s at most, "
            f"{quantiles(seen, n=1000)[-1]:.1f} s in 99.9 % of {len(seen)} looks; "
            f"it ends its ranks after {0.85 * TIMEOUT:g} s"
        )
        for status in ended:
            if status["restarts"]:
                print(f"failed: {status['failure']}", file=sys.stderr)
        return restarts == 0 and made > 0


def main() -> int:
    """Soak; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with KindCluster() as cluster:
        cluster.load_image(OPERATOR_IMAGE)
        image = cluster.load_image(FOREIGN_IMAGE)
        install(cluster)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        cluster.create_namespace(NAMESPACE)
        try:
            return 0 if soak(cluster, image, options.minutes) else 1
        finally:
            cluster.delete_namespace(NAMESPACE)


if __name__ == "__main__":
    sys.exit(main())
