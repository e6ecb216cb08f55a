"""The bundled digits in memory, and which samples each rank takes in each step.

The data set is small, so it stays on the device as uint8 and is normalised batch by batch: many
times faster than a DataLoader that decodes one sample at a time.
"""

import hashlib
import io
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
import torch

DIGITS_SHA256 = "83c5d2d9ac049bf159a48e7f5a7719bffe811e7a1b1b58c960736bc3f1a7da3d"
BLACK = 16  # the digits' brightest pixel value
MEAN, STD = 0.305, 0.376  # of the train pixels divided by BLACK


@dataclass(frozen=True)
class Samples:
    """Images and labels that belong together, on one device."""

    images: torch.Tensor  # (N, 8, 8) uint8, 0 … 16
    labels: torch.Tensor  # (N,) int64, 0 … 9

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised images (B, 1, 8, 8) float32 and labels (B,) int64 of the `chosen` (B,)."""
        chosen = chosen.to(self.labels.device)
        images = self.images[chosen].unsqueeze(1).float() / BLACK
        return (images - MEAN) / STD, self.labels[chosen]


@dataclass(frozen=True)
class Dataset:
    """A train and a test set, and what to call them in the log."""

    name: str
    sha256: str
    train: Samples
    test: Samples


def load_digits(device: torch.device) -> Dataset:
    """The 1,797 bundled 8 x 8 digits, 1,437 to train and 360 to test; `digits.txt` has the source.

    Raises ValueError if the file is not the one that was published.
    """
    content = resources.files("ddptrain").joinpath("digits.npz").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != DIGITS_SHA256:
        raise ValueError(f"digits.npz: SHA-256 must be {DIGITS_SHA256}, got {sha256}")
    with np.load(io.BytesIO(content)) as arrays:
        train, test = (
            Samples(
                torch.from_numpy(arrays[f"{part}_images"]).to(device),
                torch.from_numpy(arrays[f"{part}_labels"]).long().to(device),
            )
            for part in ("train", "test")
        )
    return Dataset("bundled digits", sha256, train, test)


def indices(
    samples: int, *, seed: int, epoch: int, step: int, global_batch: int, rank: int, world: int
) -> torch.Tensor:
    """The samples (int64) that `rank` of `world` takes in `step` (0-based) of `epoch`.

    One permutation of all samples per epoch is cut into global batches, and each of those is dealt
    out to the ranks like cards. So the global batch does not depend on the number of ranks, and
    nothing needs to be stored to resume at any step. The last batch of an epoch may be smaller;
    a rank's share of it may be empty.
    """
    start = step * global_batch
    return _permutation(samples, seed, epoch)[start : start + global_batch][rank::world]


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Number of global batches that cover every sample once."""
    return -(-samples // global_batch)


def global_batch_size(samples: int, step: int, global_batch: int) -> int:
    """Samples of all ranks together in `step` (0-based) of an epoch; only the last has fewer."""
    return min(global_batch, samples - step * global_batch)
