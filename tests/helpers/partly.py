"""Networks that leave few of their tensors trainable, and engines' view of what travels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTH = 29  # of no other tensor


class Partly(nn.Module):
    """41 tensors, of which the head's two are trainable: features of 19 layers and a scale, a linear head."""

    def __init__(self, classes: int = 10, norm: bool = False) -> None:
        super().__init__()
        wide = [64, *[WIDTH] * 19]
        layers: list[nn.Module] = [nn.Linear(a, b) for a, b in pairwise(wide)]
        self.features = nn.Sequential(nn.Flatten(), *(nn.Sequential(one, nn.Tanh(), nn.Dropout(0.2)) for one in layers))
        self.features.register_parameter("scale", nn.Parameter(torch.ones(1)))
        if norm:
            self.features.append(nn.BatchNorm1d(WIDTH))
        self.features.requires_grad_(False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.features(x))


class Drifting(nn.Module):
    """A mean of inputs, kept as a parameter that nobody trains and every pass moves, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(64), requires_grad=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of what is left of the inputs."""
        x = x.flatten(1)
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.head(x - self.mean)
