"""`python -m tests.e2e.upgrade FOLDER`: upgrade the operator in a kind cluster while jobs run.

FOLDER holds the sources of the version before; `make upgrade-images` has built the operator from
them. Jobs in every state are begun under that version, then the chart is upgraded to the present
one, rolled back, and upgraded again. Nothing may restart or change. Then the jobs go on: a rank is
killed, a suspended job resumes. All of it happens twice: for the whole cluster, and for one
namespace.
Exit codes: 0 nothing was lost, 1 something was, or an error.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.kind import KindCluster
from tests.e2e.install import CHART, SYSTEM, Job, gone, install, uninstall, wait_until
from tests.e2e.recovery import kill, pods_of, steady_job, stepped_at

BEFORE, NOW, TRAINER = (
    "ddpjob/operator:before",
    "ddpjob/operator:0.1.0",
    "ddpjob-test/foreign:0.1.0",
)
NAMESPACE = "ddpjob-upgrade"
# Longer than any delay of the operator's that could hide a restart.
WATCHED_SECONDS = 45.0
# Parts of a status that move while a job runs, and the pods' own proof.
MOVING = ("progress", "summary", "observedGeneration")


def _is_seen_to_step(status: dict[str, Any]) -> bool:
    """So that no later change of its conditions is one of training that goes on."""
    conditions = status.get("conditions") or ()
    return any(each["type"] == "Stalled" and each["status"] == "False" for each in conditions)


def seen(job: Job) -> dict[str, Any]:
    """All of a job that an upgrade must leave as it is."""
    pods = job.pods()
    return {
        "status": {name: value for name, value in job.status.items() if name not in MOVING},
        "pods": {name: pod["metadata"]["uid"] for name, pod in pods.items()},
        "restarts": {
            name: [each["restartCount"] for each in pod["status"].get("containerStatuses", [])]
            for name, pod in pods.items()
        },
        "deleting": [n for n, pod in pods.items() if pod["metadata"].get("deletionTimestamp")],
    }


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """A line for each value that is not the same. Fields that only one version has are left out."""
    if isinstance(before, dict) and isinstance(after, dict) and path != ".pods":
        for name in before.keys() & after.keys():
            yield from differences(before[name], after[name], f"{path}.{name}")
    elif before != after:
        yield f"{path} was {before}, is {after}"


@contextmanager
def jobs(cluster: KindCluster) -> Iterator[dict[str, Job]]:
    """A job that runs, one that waits for its next attempt, one suspended, one that has ended."""
    short: dict[str, Any] = {"image": TRAINER, "launcher": "none", "nnodes": 1}
    with steady_job(cluster, NAMESPACE, TRAINER) as running:
        waiting = Job.from_spec(
            *(cluster, NAMESPACE, "waiting"),
            **short,
            command=["false"],
            failurePolicy={"maxRestarts": 5, "backoffSeconds": {"first": 600, "cap": 600}},
        )
        suspended = Job.from_spec(
            *(cluster, NAMESPACE, "suspended"), **short, command=["sleep", "5"], suspend=True
        )
        ended = Job.from_spec(*(cluster, NAMESPACE, "ended"), **short, command=["true"])
        running.in_state("Running")
        running.until(_is_seen_to_step, 120, "step that the operator has seen")
        waiting.until(lambda status: status.get("restarts") == 2, 180, "second restart")
        suspended.in_state("Suspended")
        ended.in_state("Succeeded")
        yield {"running": running, "waiting": waiting, "suspended": suspended, "ended": ended}


def of(image: str) -> tuple[str, ...]:
    """The chart's flags for this image."""
    repository, _, tag = image.partition(":")
    return ("--set", f"image.repository={repository}", "--set", f"image.tag={tag}")


def check(cluster: KindCluster, before: Path, *mode: str) -> list[str]:
    """Upgrade, roll back and upgrade again, and return what that has changed."""
    install(cluster, SYSTEM, *of(BEFORE), *mode, chart=before / "charts" / "ddpjob")
    where = ("--namespace", SYSTEM, "--wait", "--timeout", "120s")
    upgrade = ("upgrade", "ddpjob", str(CHART), *where, *of(NOW), *mode)
    with jobs(cluster) as begun:
        at_first = {name: seen(job) for name, job in begun.items()}
        changes = []
        for words in (upgrade, ("rollback", "ddpjob", *where), upgrade):
            cluster.helm(*words)
            time.sleep(WATCHED_SECONDS)
            for name, job in begun.items():
                after = seen(job)
                found = differences(at_first[name], after)
                changes += [f"{words[0]} {mode}: {name}: {text}" for text in found]
                print(f"{words[0]}: {name}: {job.columns()}", file=sys.stderr)
        running, suspended = begun["running"], begun["suspended"]
        killed = kill(running, pods_of(running)[1], None)  # type: ignore[arg-type]
        # In other pods, if those of before the upgrade are not as they would be made now.
        again = (1, "Running")
        running.until(lambda now: (now["restarts"], now["state"]) == again, 120, "restart")
        pods = pods_of(running)
        wait_until(lambda: stepped_at(running, pods, killed), 120, "step after it")
        suspended.patch(suspend=False)
        suspended.in_state("Succeeded")
        for name in ("waiting", "suspended", "ended"):
            begun[name].delete()
    gone(cluster, "-n", NAMESPACE)
    uninstall(cluster)
    return changes


def main() -> int:
    """Upgrade, print what has changed; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.upgrade", description=__doc__)
    parser.add_argument("folder", type=Path, help="sources of the version before")
    options = parser.parse_args()
    with KindCluster() as cluster:
        for image in (BEFORE, NOW, TRAINER):
            cluster.load_image(image)
        changes = list[str]()
        for mode in ((), ("--set", f"watchNamespaces={{{NAMESPACE}}}")):
            cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
            cluster.create_namespace(NAMESPACE)
            try:
                changes += check(cluster, options.folder, *mode)
            except (AssertionError, TimeoutError):
                print(cluster.dump(NAMESPACE), file=sys.stderr)
                raise
            finally:
                cluster.delete_namespace(NAMESPACE)
    for change in changes:
        print(f"changed: {change}", file=sys.stderr)
    print("nothing has restarted" if not changes else f"{len(changes)} changes")
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main())
