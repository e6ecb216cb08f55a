"""Points in two rings around the origin."""

import torch


def points(count: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` points, and 1 for those of the outer ring: shapes (count, 2) and (count,)."""
    random = torch.Generator().manual_seed(seed)
    outer = torch.randint(0, 2, (count,), generator=random).float()
    angles = 2 * torch.pi * torch.rand(count, generator=random)
    radii = 1 + outer + 0.2 * torch.randn(count, generator=random)
    return torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1), outer
