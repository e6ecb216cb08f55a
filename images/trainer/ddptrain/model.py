"""BasicNet, the small convolutional network of the MNIST tutorials, and a residual one for colour.

Neither has batch normalisation: its statistics are those of one rank's share of a batch, so the
result would depend on the number of ranks. Group normalisation looks at one image alone.
"""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10


class BasicNet(nn.Module):
    """Two convolutions, one pooling, two linear layers, for square grey images.

    1,199,882 parameters for images of 28 x 28, as in the tutorials; 53,002 for 8 x 8.
    """

    def __init__(self, *, side: int = 8, dropout: bool = True) -> None:
        """`side` of the images in pixels, at least 6."""
        super().__init__()
        pooled = (side - 4) // 2
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.dropout1 = nn.Dropout(0.25 if dropout else 0.0)
        self.fc1 = nn.Linear(64 * pooled * pooled, 128)
        self.dropout2 = nn.Dropout(0.5 if dropout else 0.0)
        self.fc2 = nn.Linear(128, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, 10) of the ten classes for `images` (B, 1, side, side)."""
        x = F.relu(self.conv1(images))  # (B, 32, side - 2, side - 2)
        x = F.relu(self.conv2(x))  # (B, 64, side - 4, side - 4)
        x = self.dropout1(F.max_pool2d(x, 2))  # (B, 64, pooled, pooled)
        x = F.relu(self.fc1(x.flatten(1)))  # (B, 128)
        x = self.fc2(self.dropout2(x))  # (B, 10)
        return F.log_softmax(x, dim=1)


class ResidualNet(nn.Module):
    """Three stages of two residual blocks each, for 3 x 32 x 32: 696,234 parameters."""

    def __init__(self, *, dropout: bool = True) -> None:
        super().__init__()
        widths = (32, 64, 128)
        self.stem = nn.Conv2d(3, widths[0], kernel_size=3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for before, width in zip((widths[0], *widths), widths, strict=False):
            stride = 1 if width == before else 2
            blocks += [ResidualBlock(before, width, stride), ResidualBlock(width, width, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(8, widths[-1])
        self.dropout = nn.Dropout(0.2 if dropout else 0.0)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, 10) of the ten classes for `images` (B, 3, 32, 32)."""
        x = self.blocks(self.stem(images))  # (B, 128, 8, 8)
        x = self.dropout(F.relu(self.norm(x)).mean(dim=(2, 3)))  # (B, 128)
        return F.log_softmax(self.head(x), dim=1)


class ResidualBlock(nn.Module):
    """Normalise, activate, convolve, twice, and add what came in."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, before)
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        changes = before != width or stride != 1
        self.shortcut = (
            nn.Conv2d(before, width, 1, stride=stride, bias=False) if changes else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, before, H, W) to (B, width, H / stride, W / stride)."""
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        total: torch.Tensor = self.shortcut(x) + y
        return total


def network(shape: tuple[int, int, int], *, dropout: bool = True) -> nn.Module:
    """The network for images of `shape` (C, H, W). Raises ValueError for other shapes."""
    channels, height, width = shape
    if channels == 1 and height == width >= 6:
        return BasicNet(side=height, dropout=dropout)
    if shape == (3, 32, 32):
        return ResidualNet(dropout=dropout)
    raise ValueError(f"images must be 1 x N x N, N >= 6, or 3 x 32 x 32, got {shape}")
