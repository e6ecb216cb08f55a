"""Mistakes that tutorials make, each with its wrong number beside ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

from ddptrain.data import load
from ddptrain.model import BasicNet

RANKS, TEST, TRAIN = 7, 360, 1437

Torchrun = Callable[..., str]


@pytest.fixture(scope="module")
def numbers(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mistakes")
    fork_ranks(RANKS, ("mistakes", f"--checkpoint-dir={folder}"))
    found: dict[str, Any] = json.loads((folder / "numbers.json").read_text())
    return found


@pytest.mark.deep
def test_accuracy_of_a_shard_over_the_whole_set_is_a_fraction_of_it(
    numbers: dict[str, Any],
) -> None:
    correct, tested = numbers["exact"]
    assert tested == TEST and correct / tested > 0.8
    assert numbers["shard_over_whole"] == pytest.approx(correct / tested / RANKS, rel=0.1)


@pytest.mark.deep
def test_a_padded_sampler_counts_samples_twice(numbers: dict[str, Any]) -> None:
    correct, tested = numbers["padded"]
    assert tested == 364
    assert numbers["exact"][0] <= correct  # divided by 360 it is too good


@pytest.mark.deep
def test_without_a_sampler_every_rank_sees_everything(numbers: dict[str, Any]) -> None:
    assert numbers["seen_without_sampler"] == RANKS * TRAIN


@pytest.mark.deep
def test_without_set_epoch_every_epoch_has_the_same_order(numbers: dict[str, Any]) -> None:
    assert numbers["order_without_set_epoch"] is True
    assert numbers["order_with_set_epoch"] is False


@pytest.mark.deep
def test_a_mean_of_means_is_not_the_mean(numbers: dict[str, Any]) -> None:
    assert numbers["mean_of_means"] > 1e-2
    assert numbers["weighted"] < 1e-5


def test_the_misspelt_option_is_refused(torchrun: Torchrun) -> None:
    output = torchrun(1, "--nproc_per_nodes=2", "-m", "ddptrain.native", code=2)
    assert "--nproc_per_nodes" in output


# --- what the tutorials' Trainer level does with transformers 5, on one process -----------------


class TutorialTrainer(Trainer):
    """The snippet, with the signature mended; `Trainer.evaluate` is what the tests look at."""

    output: Callable[[torch.Tensor], Any] = staticmethod(lambda logits: logits)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        logits = model(inputs["images"])
        loss = F.nll_loss(logits, inputs["labels"])
        return (loss, type(self).output(logits)) if return_outputs else loss


class NamedOutput(TutorialTrainer):
    output = staticmethod(lambda logits: {"logits": logits})


class AsPrinted(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # type: ignore[override]
        return F.nll_loss(model(inputs["images"]), inputs["labels"])


def tutorial(kind: type[Trainer], folder: Path, **settings: Any) -> Trainer:
    """A trainer of the digits, with the settings that the snippet leaves alone, and `settings`."""
    torch.manual_seed(1)
    digits = load("digits", None, torch.device("cpu"))
    images, labels = digits.test.batch(torch.arange(TEST))
    dataset = [{"images": images[i], "labels": labels[i]} for i in range(TEST)]
    trainer = kind(
        BasicNet(dropout=False),
        TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            per_device_eval_batch_size=64,
            **settings,
        ),
        train_dataset=dataset,
        eval_dataset=dataset,
        compute_metrics=lambda found: {"tested": len(found.predictions)},
    )
    return trainer


def test_the_evaluation_strategy_has_another_name_now() -> None:
    with pytest.raises(TypeError, match="evaluation_strategy"):
        TrainingArguments(evaluation_strategy="epoch")  # type: ignore[call-arg]


def test_a_loss_without_the_number_of_items_does_not_run(alone: None, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="num_items_in_batch"):
        tutorial(AsPrinted, tmp_path, max_steps=1).train()


def test_without_label_names_the_labels_go_to_the_model(alone: None, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="labels"):
        tutorial(NamedOutput, tmp_path).evaluate()


def test_a_bare_tensor_loses_the_first_sample_of_each_batch(alone: None, tmp_path: Path) -> None:
    bare = tutorial(TutorialTrainer, tmp_path, label_names=["labels"]).evaluate()
    named = tutorial(NamedOutput, tmp_path, label_names=["labels"]).evaluate()
    assert (bare["eval_tested"], named["eval_tested"]) == (354, TEST)  # six batches


def test_the_trainers_own_settings_are_another_training(alone: None, tmp_path: Path) -> None:
    """Rate, its decay, weight decay and clipping all differ from those of the other two levels."""
    trainer = tutorial(TutorialTrainer, tmp_path, max_steps=2, logging_steps=1)
    rates = []

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rates.append(kwargs["logs"].get("learning_rate"))

    trainer.add_callback(Watch)
    trainer.train()
    assert rates[:2] == pytest.approx([5e-5, 2.5e-5])  # not 1e-3, and falling
    assert (trainer.args.weight_decay, trainer.args.max_grad_norm) == (0.0, 1.0)
