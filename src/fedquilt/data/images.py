"""Arithmetic on stacks of images [n, channels, height, width], stored as bytes or floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def rotated(images: Tensor, angle: float) -> Tensor:
    """The images turned counter-clockwise by degrees; right angles exactly, others by :func:`sampled`."""
    return torch.rot90(images, int(angle // 90) % 4, (2, 3)) if angle % 90 == 0 else sampled(images, angle)


def sampled(images: Tensor, angle: float) -> Tensor:
    """The images turned counter-clockwise by degrees, by bilinear sampling with zeros outside; they must be square."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    context = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)  # from new places to old ones

    def turned(x: Tensor) -> Tensor:
        return grid_sample(x, affine_grid(context, list(x.shape), align_corners=False), align_corners=False)

    return on_floats(images, turned) if len(images) else images


def on_floats(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a change to floats as they are, and to bytes on the scale 0 to 1, rounded and clipped."""
    if x.dtype != torch.uint8:
        return change(x.float())
    return (change(x.float() / 255) * 255).round_().clamp_(0, 255).to(torch.uint8)
