"""Automatic mixed precision: float16 or bfloat16 in the forward pass, float32 weights.

Small gradients of float16 would round to 0, so a GradScaler multiplies the loss, and divides the
gradients before the optimizer's step. It skips a step whose gradients are NaN or infinite, and
halves the factor. bfloat16 has float32's range and needs no scaler.
"""

import argparse

import torch
from torch.amp import GradScaler

NAMES = {"no": "float32", "bf16": "bfloat16 autocast", "fp16": "float16 autocast"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--bf16` and `--fp16`, of which one sets `precision`; "no" without either."""
    group = parser.add_mutually_exclusive_group()
    for name, use in (("bf16", "bfloat16"), ("fp16", "float16 and a scaled loss")):
        group.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="precision",
            default="no",
            help=f"automatic mixed precision with {use}",
        )


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "no")


def make_scaler(device: torch.device, precision: str) -> GradScaler:
    """The scaler of a training; without float16 it changes nothing."""
    return GradScaler(device.type, enabled=precision == "fp16")
