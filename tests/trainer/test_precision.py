"""float16 with a scaled loss, on CPUs."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddptrain import checkpoint, native, rng
from ddptrain.checkpoint import CheckpointFolder
from ddptrain.compare import rank as compare_rank
from ddptrain.compare.rank import Work, measure
from ddptrain.compare.table import SINGLE, Variant
from ddptrain.config import parse
from ddptrain.data import load
from ddptrain.dist import World
from ddptrain.gpt import TINY
from ddptrain.model import BasicNet, network
from ddptrain.precision import make_scaler
from ddptrain.preemption import StopVote
from ddptrain.report import Diverged, Report
from tests.trainer.training import assert_same_training, same_bits, saved

FIRST_SCALE = 65536.0
CPU = torch.device("cpu")
LEVELS = [
    ("ddptrain.native", "torch"),
    pytest.param("ddptrain.accelerated", "accelerate", marks=pytest.mark.deep),
    pytest.param("ddptrain.hf", "transformers", marks=pytest.mark.deep),
]


def learned(world: World, precision: str) -> tuple[list[float], torch.Tensor]:
    """The loss of each of a few steps on one batch, and weights after them."""
    rng.seed_all(1)
    net = BasicNet(dropout=False)
    model, optimizer = DistributedDataParallel(net), torch.optim.AdamW(net.parameters())
    scaler = make_scaler(CPU, precision)
    batch = load("digits", None, CPU).train.batch(torch.arange(16))
    losses = [
        float(
            native.train_step(
                *(model, optimizer, batch, 16, world), precision=precision, scaler=scaler
            )
        )
        for _ in range(8)
    ]
    assert scaler.get_scale() == (FIRST_SCALE if precision == "fp16" else 1)
    return losses, net.fc2.weight.detach()


def test_it_learns_as_float32_does(world: World) -> None:
    (full, exact), (half, weights) = learned(world, "no"), learned(world, "fp16")
    assert half[-1] < 0.8 * half[0]
    assert half == pytest.approx(full, rel=0.02)
    assert weights.dtype == torch.float32
    assert not torch.equal(weights, exact)  # the arithmetic is another


@pytest.mark.parametrize(("level", "needs"), LEVELS)
def test_an_overflow_skips_a_step_on_all_ranks_and_a_resume_keeps_the_scale(
    level: str, needs: str, fork_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    pytest.importorskip(needs)

    def run(steps: int, name: str) -> tuple[str, ...]:
        more = ("--fp16", "--accumulation=2", "--batch-size=8", f"--max-steps={steps}")
        return "overflow", *more, f"--checkpoint-dir={tmp_path / name}"

    runs = run(6, "whole"), run(3, "parts"), run(6, "parts")
    outputs = fork_ranks(2, *runs, LEVEL=level, ACCELERATE_USE_CPU="true")
    assert "step-00000003-attempt-0.pt" in outputs[-1]
    whole = saved(tmp_path / "whole", 6)
    scaler = whole["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (FIRST_SCALE / 2, 4)
    assert {float(moments["step"]) for moments in whole["optimizer"]["state"].values()} == {5}
    assert_same_training(saved(tmp_path / "parts", 6), whole)
    for folder in ("whole", "parts"):
        one, other = (torch.load(tmp_path / folder / f"{rank}.weights") for rank in range(2))
        assert same_bits(one, other)


def test_gradients_that_are_never_finite_fail_the_training(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss and the weights stay finite, as each step is skipped."""
    made = network

    def spoiled(*arguments: object, **options: object) -> torch.nn.Module:
        net = made(*arguments, **options)  # type: ignore[arg-type]
        bias = net.get_parameter("fc2.bias")
        bias.register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
        return net

    monkeypatch.setattr(native, "network", spoiled)
    # Ten steps from the least number of float32, as 166 are from the scaler's own start.
    monkeypatch.setattr(native, "make_scaler", lambda *_: GradScaler("cpu", init_scale=2**-139))
    config = parse("native", ["--fp16", "--batch-size=2", "--max-steps=12"])
    with (
        Report(config, world) as report,
        pytest.raises(Diverged, match=r"by step 12 .* at every scale of --fp16"),
    ):
        native.train(config, world, StopVote(), report)


@pytest.mark.parametrize(
    ("was", "now", "restored"),
    [("fp16", "fp16", 128.0), ("no", "fp16", FIRST_SCALE), ("fp16", "no", 1.0)],
)
def test_the_precision_may_change_in_a_resume(
    was: str, now: str, restored: float, world: World, tmp_path: Path
) -> None:
    folder = CheckpointFolder(tmp_path, "", 0, keep=1)
    folder.claim()
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(net.parameters())
    of = GradScaler("cpu", init_scale=128.0, enabled=was == "fp16")
    checkpoint.save(folder, world, step=1, model=net, optimizer=optimizer, scaler=of, config={})
    to = make_scaler(CPU, now)
    checkpoint.load(folder, world, model=net, optimizer=optimizer, scaler=to, config={})
    assert to.get_scale() == restored


def test_the_comparison_measures_no_step_that_the_scaler_skips(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step without AdamW takes less time. The sum over so many tokens overflows at first."""
    monkeypatch.setattr(compare_rank, "GPT2", TINY)
    steps: list[object] = []
    counting = register_optimizer_step_post_hook(lambda *step: steps.append(step))
    work = Work("gpt2", Variant(SINGLE, 1, 1), 4, TINY.context, steps=2, warmup=3, precision="fp16")
    measure(work, world)
    counting.remove()
    assert len(steps) == 3 + 2
