"""BasicNet: the small convolutional network of the MNIST tutorials, sized for 8 x 8 digits."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicNet(nn.Module):
    """Two convolutions, one pooling, two linear layers: 53,002 parameters."""

    def __init__(self, *, dropout: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.dropout1 = nn.Dropout(0.25 if dropout else 0.0)
        self.fc1 = nn.Linear(64 * 2 * 2, 128)
        self.dropout2 = nn.Dropout(0.5 if dropout else 0.0)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, 10) of the ten digits for `images` (B, 1, 8, 8)."""
        x = F.relu(self.conv1(images))  # (B, 32, 6, 6)
        x = F.relu(self.conv2(x))  # (B, 64, 4, 4)
        x = self.dropout1(F.max_pool2d(x, 2))  # (B, 64, 2, 2)
        x = F.relu(self.fc1(x.flatten(1)))  # (B, 256) -> (B, 128)
        x = self.fc2(self.dropout2(x))  # (B, 10)
        return F.log_softmax(x, dim=1)
