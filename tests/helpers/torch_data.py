"""Data sets as users write them: plain, random in every way, and told to other processes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """Small images of floats with their labels; ``reads`` counts the items that were asked for."""

    def __init__(self, count: int, seed: int = 0, side: int = 4) -> None:
        made = np.random.default_rng(seed)
        self.x = made.normal(size=(count, 3, side, side)).astype(np.float32)
        self.y = made.integers(0, 4, count)
        self.reads = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        self.reads += 1
        return torch.from_numpy(self.x[place]), int(self.y[place])


class Jittered(Images):
    """Each image with noise from all three default generators."""

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(place)
        return x + 0.1 * torch.randn(x.shape) + random.random() + np.random.rand(), y


@dataclass(frozen=True)
class Told(Dataset[tuple[Tensor, int]]):
    """Images that any process can make again."""

    count: int
    shift: float = 0.0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.full((3, 4, 4), self.shift + place / self.count) + torch.rand(()), place % 4


class Linear(nn.Module):
    """A linear classifier of images [3, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(x.flatten(1))
