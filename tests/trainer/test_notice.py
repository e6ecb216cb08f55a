"""Scripts that know nothing of ddpjob save on notice, and go on from there."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from ddpjob import names
from ddpjob_agent.nodes.group import print_of
from tests.agentpod import TOKEN, Pod, Pods, archive_with
from tests.cluster.processes import free_ports
from tests.trainer.rounds import Operator
from tests.trainer.saving import ACCELERATE, TRAINER, steps
from tests.trainer.warm_pods import script

pytestmark = pytest.mark.deep

PATIENT = archive_with({"WAIT_SECONDS = 30.0": "WAIT_SECONDS = 1000.0"})


class Job:
    """Pods that train, with one folder for all."""

    def __init__(
        self, pods: Pods, folder: Path, text: str, nnodes: int = 2, **changes: str
    ) -> None:
        """All pods are started and waited for; of an elastic job the first one is started."""
        (folder / "out").mkdir()
        self.pods, self.nnodes, self.changes = pods, nnodes, changes
        self.path = script(pods, text.replace('"out', f'"{folder}/out'))
        (self.port,) = free_ports(1)
        if "DDPJOB_MAX_WORLD_SIZE" in changes:
            self.start(0)
            return
        for pod in [self.start(rank) for rank in range(nnodes)]:
            self.until_steps(pod, 0)

    def start(self, rank: int, number: int = 0, **more: str) -> Pod:
        """A pod of the job, from this round on."""
        head = self.pods.address(0)
        ours = {"MASTER_ADDR": head, "PET_MASTER_ADDR": head, "DDPJOB_ROUND": str(number)}
        changes = {**ours, "DDPJOB_RESTART": "InPlace", **self.changes, **more}
        words, port = ("torchrun", "--", self.path), self.port
        return self.pods.start(
            *words, rank=rank, nnodes=self.nnodes, port=port, archive=PATIENT, changes=changes
        )

    def until_steps(self, pod: Pod, number: int) -> None:
        """Wait for some steps of a round."""
        pod.until(lambda: len(steps(pod.log, number)) > 3)


@pytest.mark.parametrize("text", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_all_save_where_one_pod_goes_and_no_step_is_lost(
    pods: Pods, tmp_path: Path, text: str
) -> None:
    text = text.replace("BEFORE", "").replace("OPTIONS", "{}")
    ours = Job(pods, tmp_path, text)
    first, second = pods.started
    second.terminate()
    assert second.wait() == 75 and second.summary["reason"] == "Preempted"
    Operator(first).until_failed()
    last = steps(first.log, 0)[-1]
    assert steps(second.log, 0)[-1][0] == last[0]
    third = ours.start(1, number=1)
    third.until(third.progress)
    query = f"round=1&pods=1:{print_of(f'uid-{third.address}')}&since=1"
    first.get(f"/group?{query}", TOKEN)
    for pod in (first, third):
        ours.until_steps(pod, 1)
        assert steps(pod.log, 1)[0][0] == last[0] + 1
    assert steps(first.log, 1)[0][1] > last[1], "nor is any sample seen again"
    third.terminate()
    assert third.wait() == 75, "once more"


@pytest.mark.parametrize("text", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_a_group_that_gets_larger_loses_no_step(pods: Pods, tmp_path: Path, text: str) -> None:
    """It has begun with one of two pods; the other one comes later, as a spare."""
    text = text.replace("BEFORE", "").replace("OPTIONS", "{}")
    rank, nnodes, world_size = names.OWN_RANK, names.OWN_NNODES, names.OWN_WORLD_SIZE
    ours = {"PET_NODE_RANK": rank, "RANK": rank, "PET_NNODES": nnodes, "WORLD_SIZE": nnodes}
    ours |= {"DDPJOB_WORLD_SIZE": world_size, "DDPJOB_MAX_WORLD_SIZE": "2"}
    job = Job(pods, tmp_path, text, 2, **ours)
    (first,) = pods.started
    first.until(first.progress)
    first.get("/group?round=1&size=1", TOKEN)
    job.until_steps(first, 1)
    second = job.start(0, DDPJOB_NODE_RANK=rank)
    second.until(lambda: "this pod is a spare" in second.log)
    pair = f"1:{print_of(f'uid-{second.address}')}"
    first.get(f"/group?round=2&pods={pair}&since=2&size=2", TOKEN)
    for pod in (first, second):
        job.until_steps(pod, 2)
        assert steps(pod.log, 2)[0][0] == steps(first.log, 1)[-1][0] + 1


OFF = {"DDPJOB_SAVE_ON_NOTICE": "0"}
OWN = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))"


@pytest.mark.parametrize(
    ("text", "before", "options", "variables", "code"),
    [
        pytest.param(TRAINER, OWN, "{}", {}, 75, id="the script saves by itself"),
        pytest.param(TRAINER, "", "{'save_strategy': 'no'}", {}, 143, id="it saves nothing"),
        pytest.param(TRAINER, "", "{'save_only_model': True}", {}, 143, id="no optimizer"),
        pytest.param(TRAINER, "", "{}", OFF, 143, id="off by a variable"),
        pytest.param(ACCELERATE, OWN, "", {}, 75, id="accelerate, the script saves by itself"),
        pytest.param(ACCELERATE, "", "", OFF, 143, id="accelerate, off by a variable"),
    ],
)
def test_nothing_is_saved_where_it_would_not_help(
    pods: Pods,
    tmp_path: Path,
    text: str,
    before: str,
    options: str,
    variables: dict[str, str],
    code: int,
) -> None:
    text = text.replace("BEFORE", before).replace("OPTIONS", options)
    Job(pods, tmp_path, text, nnodes=1, **variables)
    (pod,) = pods.started
    pod.terminate()
    assert pod.wait() == code
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("text", [TRAINER, ACCELERATE], ids=["trainer", "accelerate"])
def test_a_suspended_job_goes_on_where_it_was(pods: Pods, tmp_path: Path, text: str) -> None:
    text = text.replace("BEFORE", "").replace("OPTIONS", "{}")
    ours = Job(pods, tmp_path, text, nnodes=1, DDPJOB_RESTART="Recreate")
    (pod,) = pods.started
    pod.terminate()
    assert pod.wait() == 75
    (last, place) = steps(pod.log, 0)[-1]
    second = ours.start(0)
    ours.until_steps(second, 0)
    (first, again) = steps(second.log, 0)[0]
    assert first == last + 1 and again > place
    assert ("goes on from" in second.log) == ("TrainingArguments" in text)
