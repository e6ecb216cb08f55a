"""Code that changes ten times an hour: rounds of the same pods, on real kubelets."""

import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.kind import KindCluster
from tests.e2e.hands import Hands
from tests.e2e.install import Job, wait_until
from tests.e2e.project import TRAIN, Project, developing
from tests.e2e.recovery import MOUNT, TEMPLATE, VOLUME, kill_operator, pods_of, stepped_at
from tests.e2e.silence import both_ways, cutting, settled

pytestmark = pytest.mark.usefixtures("installed")


def test_each_save_runs_in_the_same_pods(
    tmp_path: Path, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """Also one that mends an error, one within a start, and the last of twenty in two seconds."""
    project = Project(tmp_path / "project")
    hands, job = Hands(project.folder, kind_cluster, namespace), Job(kind_cluster, namespace, "dev")
    words = ("--image", foreign_image, "--memory", "1Gi")
    with developing(project.folder, *words, env=hands.env) as dev:
        uids = [pod["metadata"]["uid"] for pod in job.pods().values()]

        def steps_with(number: int, since: float) -> None:
            wait_until(lambda: stepped_at(job, pods_of(job), since), 120, f"step with {number}")
            dev.until(f"settings number: {number}\n")

        steps_with(1, project.save(1))
        project.save(2)
        time.sleep(0.7)  # its ranks begin
        steps_with(3, project.save(3))
        project.put("train.py", "raise ValueError('no such layer')\n")
        status = job.in_state("Idle", 120)
        assert status["failure"]["message"] == "ValueError: no such layer"
        revision = status["program"]["revision"]
        assert status["failure"]["revision"] == revision
        dev.until("ValueError: no such layer")
        steps_with(3, project.put("train.py", TRAIN))
        assert job.status["program"]["revision"] == revision + 1
        for number in range(100, 120):
            began = project.save(number)
            time.sleep(0.1)
        steps_with(119, began)
        job.until(lambda status: status["state"] == "Running", 60, "all nodes")
        time.sleep(2.0)
        assert re.findall(r"settings number: (\d+)", dev.out)[-1] == "119"
        status = job.status
        assert [pod["metadata"]["uid"] for pod in job.pods().values()] == uids
        assert (status["attempt"], status["budget"]["charged"]) == (0, 0)
        assert {entry["reason"] for entry in status["history"]} <= {"Updated", "Exception"}
    job.delete()


# Cells of a notebook that each call a function in the same pods, as a script.
CELLS = """
import sys, time
from ddpjob import launch

def train(number):
    import time
    import torch.distributed as dist
    dist.init_process_group("gloo")
    return {"began": time.time(), "world": dist.get_world_size(), "number": number}

def main(new):
    for number in range(4):
        asked = time.time()
        run = launch(train, number, stream=False, timeout=300, **new)
        value, new = run.result(), {"job": run}
        assert (value["number"], value["world"]) == (number, 2), value
        print("cell", number, value["began"] - asked, flush=True)

if __name__ == "__main__":
    main({"nnodes": 2, "image": sys.argv[1], "name": "cells", "keep_seconds": 900})
"""


@pytest.mark.deep
def test_cells_of_a_notebook_run_in_the_same_pods(
    tmp_path: Path, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / "cells.py").write_text(CELLS)
    hands, job = Hands(folder, kind_cluster, namespace), Job(kind_cluster, namespace, "cells")
    words = [sys.executable, "cells.py", foreign_image]
    cells = subprocess.run(words, cwd=folder, env=hands.env, capture_output=True, text=True)
    assert cells.returncode == 0, cells.stdout + cells.stderr
    print(cells.stdout)
    status = job.in_state("Idle")
    assert (status["program"]["revision"], status["attempt"]) == (4, 0)
    job.delete()


# Trains for a moment, or fails, as its argument says.
ONCE = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    print("word", sys.argv[1], flush=True)
if sys.argv[1] == "bad":
    raise ValueError(sys.argv[1])
"""


@pytest.mark.deep
def test_kept_pods_run_edits_whatever_becomes_of_the_operator(
    tmp_path: Path, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """One that fails is taken back, and the loss of a node is the job's end."""
    script = tmp_path / "once" / "once.py"
    script.parent.mkdir()
    script.write_text(ONCE)
    hands = Hands(script.parent, kind_cluster, namespace)
    kind_cluster.kubectl("create", "configmap", "-n", namespace, "script", f"--from-file={script}")
    words = {"volumes": [VOLUME], "volumeMounts": [MOUNT], "args": ["/script/once.py", "first"]}
    spec = {"image": foreign_image, "nnodes": 2, "template": TEMPLATE, "keepSeconds": 900}
    job = Job.from_spec(kind_cluster, namespace, "once", **spec, **words)
    job.in_state("Idle")
    pods = job.pods()

    def ran(word: str, revision: int) -> None:
        job.until(lambda status: status["program"]["revision"] == revision, 120, word)
        job.in_state("Idle")
        found = job.pods()
        for name, pod in pods.items():
            assert found[name]["metadata"]["uid"] == pod["metadata"]["uid"]
        assert job.logs("once-0-0").count(f"word {word}\n") == 1

    ran("first", 1)
    kill_operator(kind_cluster)
    assert hands.do("update", "once", "--", "second").code == 0
    ran("second", 2)
    assert hands.do("update", "once", "--", "third").code == 0
    kill_operator(kind_cluster)
    ran("third", 3)
    ended = hands.do("update", "once", "--rollback", "--", "bad")
    assert ended.code == 1 and "it is taken back" in ended.err, ended
    job.until(lambda status: status["program"]["revision"] == 5, 120, "the former arguments")
    job.in_state("Idle")
    assert job.logs("once-0-0").count("word third\n") == 2
    assert hands.do("update", "once", "--rollback", "--", "fourth").code == 0
    ran("fourth", 6)
    with ExitStack() as undo:
        settled()
        cutting(*both_ways)(job, pods_of(job)[1], undo)
        status = job.in_state("Succeeded", 120)
    assert status["program"]["revision"] == 6
    job.delete()
