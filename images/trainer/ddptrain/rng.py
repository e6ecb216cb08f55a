"""The random states of one process: Python's, NumPy's and torch's, as plain values."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(*key: int) -> None:
    """Seed every generator of this process from `key`; keys that differ anywhere are unrelated."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # all GPUs too


def get_state(device: torch.device) -> dict[str, Any]:
    """Every generator's state, in types that torch.load(weights_only=True) accepts."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": numpy_state | {"state": _plain(numpy_state["state"])},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def fits(state: dict[str, Any], device: torch.device) -> bool:
    """Whether `state` was taken where the model draws from the same generators as on `device`.

    On a GPU dropout draws from the GPU's, so the CPU's stays where it was seeded, and the other way
    round: going on from there would draw the masks of the first steps again.
    """
    return (state["cuda"] is not None) == (device.type == "cuda")


def set_state(state: dict[str, Any], device: torch.device) -> None:
    """Put every generator where `get_state` found it; `state` fits `device`."""
    random.setstate(state["python"])
    key = np.asarray(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state(
        state["numpy"] | {"state": {"key": key, "pos": state["numpy"]["state"]["pos"]}}
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _plain(mersenne: dict[str, Any]) -> dict[str, Any]:
    return {"key": mersenne["key"].tolist(), "pos": int(mersenne["pos"])}
