"""Hugging Face's Trainer as one usually writes it: the bundled digits, with checkpoints.

    python hf_trainer.py                                     # one process
    torchrun --standalone --nproc-per-node 2 hf_trainer.py   # two

`ddptrain.hf` trains the same to the last digit as plain DDP, and is longer for it.
"""

import os

import torch
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ddptrain.data import Samples, load
from ddptrain.model import BasicNet

FOLDER = os.environ.get("DDPJOB_CHECKPOINT_DIR", "checkpoints")


class Digits(Dataset[dict[str, torch.Tensor]]):
    """Digits of 8 x 8 pixels, under the names that `Classifier.forward` has for them."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        (pixels,), (label,) = self.samples.batch(torch.tensor([index]))
        return {"pixels": pixels, "labels": label}


class Classifier(BasicNet):
    """BasicNet with the loss in its answer, where the Trainer looks for it."""

    def forward(  # type: ignore[override]
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Loss and log-probabilities (B, 10) for `pixels` (B, 1, 8, 8) and `labels` (B,)."""
        logits = super().forward(pixels)
        return {"loss": F.nll_loss(logits, labels), "logits": logits}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of the test images that are recognised."""
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


@record
def main() -> None:
    """Train, or go on from the last checkpoint, and print the accuracy."""
    data = load("digits", None, torch.device("cpu"))
    arguments = TrainingArguments(
        output_dir=FOLDER,
        num_train_epochs=5,
        per_device_train_batch_size=32,  # of each process: all together see 32 x WORLD_SIZE
        learning_rate=1e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,  # in a pod's log its bars are one long line
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        Classifier(side=8),
        arguments,
        train_dataset=Digits(data.train),
        eval_dataset=Digits(data.test),
        compute_metrics=accuracy,
    )
    os.makedirs(FOLDER, exist_ok=True)  # where the last epoch was saved, a restart goes on
    trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER))
    result = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"test accuracy {result['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
