"""A script on transformers' Trainer shows its steps, loss and time left without a line of ours."""

from typing import Any

import pytest

pytest.importorskip("transformers")

from tests.agentpod import Pod, Pods
from tests.cluster.processes import free_ports
from tests.trainer.warm_pods import script

TRAIN = """
import sys, time
import torch
from transformers import Trainer, TrainingArguments

steps, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        time.sleep(seconds)
        found = self.linear(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(1000)]
arguments = TrainingArguments(
    output_dir=folder, max_steps=steps, per_device_train_batch_size=2, use_cpu=True,
    logging_steps=5, save_steps=10,
)
trainer = Trainer(model=Line(), args=arguments, train_dataset=rows)
trainer.train(resume_from_checkpoint=len(sys.argv) > 4)
"""


def train(pods: Pods, *arguments: str, **changes: str) -> Pod:
    words = ["torchrun", "--", script(pods, TRAIN), *arguments]
    (port,) = free_ports(1)
    return pods.start(*words, port=port, changes={"ACCELERATE_USE_CPU": "true", **changes})


def page_of(pod: Pod) -> dict[str, Any]:
    progress: dict[str, Any] = pod.summary["progress"]
    return progress


@pytest.mark.deep
def test_steps_loss_and_time_left_are_seen_while_it_trains(pods: Pods) -> None:
    pod = train(pods, "100", "0.1", str(pods.root / "out"))
    pod.until(lambda: pod.progress().get("source") == "counted")
    pod.until(lambda: pod.progress().get("source") == "callback")
    pod.until(lambda: "eta_seconds" in (page := pod.progress()) and page["step"] < 100)
    assert pod.wait() == 0, pod.log
    page = page_of(pod)
    assert (page["source"], page["step"], page["total_steps"]) == ("callback", 100, 100)
    assert page["eta_seconds"] == 0 and 0 <= page["loss"] < 20 and page["epoch"] == 0.2
    assert page["samples_per_second"] > 0 and page["metrics"]["learning_rate"] > 0


@pytest.mark.deep
def test_a_short_training_shows_all_of_its_steps_and_its_loss(pods: Pods) -> None:
    pod = train(pods, "20", "0", str(pods.root / "out"))
    assert pod.wait() == 0, pod.log
    page = page_of(pod)
    assert (page["source"], page["step"], page["total_steps"]) == ("callback", 20, 20)
    assert 0 <= page["loss"] < 20


@pytest.mark.deep
def test_a_training_that_goes_on_shows_the_steps_of_the_whole(pods: Pods) -> None:
    folder = str(pods.root / "out")
    assert train(pods, "30", "0", folder).wait() == 0
    second = train(pods, "100", "0.1", folder, "resume")
    second.until(lambda: second.progress().get("source") == "callback")
    assert second.progress()["step"] > 30
    assert second.wait() == 0, second.log
    assert (page_of(second)["step"], page_of(second)["total_steps"]) == (100, 100)
