"""A decoder in the shape of GPT-2, for measurements of speed and memory on synthetic tokens.

Its weights are as many and its layers as wide as those of the published GPT-2, so gradients and
activations have a realistic size. It has no dropout, no cache and no text generation, and cannot
load the published weights: it is not meant for training anything.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class GPTConfig:
    """The size of a decoder."""

    vocabulary: int  # different tokens
    context: int  # tokens a sequence may have
    layers: int
    heads: int  # of each layer; divides the width
    width: int  # numbers per token between the layers


# The small model of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019):
# 124,439,808 parameters, 498 MB of float32 gradients.
GPT2 = GPTConfig(vocabulary=50_257, context=1024, layers=12, heads=12, width=768)
TINY = GPTConfig(vocabulary=61, context=16, layers=2, heads=2, width=8)


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares its weights with the token embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            _initialise(name, parameter, config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, vocabulary) of the token after each of `tokens` (B, T), T <= context."""
        _, length = tokens.shape
        positions = torch.arange(length, device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)  # (B, T, width)
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Block(nn.Module):
    """Attention to what came before, then a feed-forward net; each normalises what it reads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same shape."""
        x = x + self.attended(self.attention(self.norm1(x)))
        hidden = F.gelu(self.widen(self.norm2(x)), approximate="tanh")  # (B, T, 4 * width)
        total: torch.Tensor = x + self.narrow(hidden)
        return total

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention of all heads side by side: (B, T, width) to the same shape."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # (B, heads, T, width / heads) each
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


def _initialise(name: str, parameter: nn.Parameter, config: GPTConfig) -> None:
    """GPT-2's start: deviation 0.02, less where layers add up; biases 0, norms the identity.

    Each block adds twice to what passes through it, so the deviation of those two sums is divided
    by the square root of their number, 2 * layers.
    """
    if parameter.dim() < 2:
        nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)
        return
    adds = name.endswith(("attended.weight", "narrow.weight"))
    nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if adds else 0.02)


def synthetic_tokens(batch: int, length: int, *, vocabulary: int, seed: int) -> torch.Tensor:
    """Synthetic tokens (batch, length) int64, 0 … vocabulary - 1: noise, the same for a `seed`.

    There is nothing to learn in them: they are for measurements of speed and memory.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator)


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in nats of `logits` (B, T, V) for `targets` (B, T), summed over all tokens.

    A sum, as ranks may hold different numbers of tokens: who calls it divides by those of all.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
