"""From stored rows to what a network takes. Images are stored as bytes, channels first; only a batch becomes float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedquilt.core.table import Columns
from fedquilt.errors import InputError

PerChannel = float | tuple[float, ...]


@dataclass(frozen=True)
class Pixels:
    """Bytes to normalised floats: x -> (x / 255 - mean) / std, float32.

    The axes are settled when a federation is made (it stores images as channels, height, width), so this is one
    multiplication and, unless the mean is 0, one addition in place.

    Args:
        mean: One number, or one per channel, on the scale 0 to 1.
        std: One number, or one per channel; more than 0.

    Example:
        >>> batch = {"x": torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)}
        >>> float(Pixels(mean=0.5, std=0.25)(batch)["x"].mean())
        2.0
    """

    mean: PerChannel = 0.0
    std: PerChannel = 1.0

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            numbers = tuple(value) if isinstance(value, tuple | list) else (value,)
            if not numbers or not all(isinstance(v, int | float) and math.isfinite(v) for v in numbers):
                raise InputError(f"Pixels: {name} must be a number or one number per channel, got {value!r}.")
            if name == "std" and min(numbers) <= 0:
                raise InputError(f"Pixels: std must be more than 0, got {value!r}.")
            object.__setattr__(self, name, numbers if isinstance(value, tuple | list) else float(value))

    def __call__(self, columns: Columns) -> Columns:
        x = columns["x"]
        scale, shift = self._affine
        if scale.dim():  # per channel; a plain number works on every device as it is
            scale, shift = scale.to(x.device), shift.to(x.device)
        scaled = torch.mul(x, scale)
        return {**columns, "x": scaled.add_(shift) if self._shifts else scaled}

    def check(self, x: Tensor) -> None:
        """Raise unless this column can be prepared so."""
        if x.dtype != torch.uint8:
            raise InputError(
                f"Pixels prepares byte images (uint8), but x is {x.dtype}. Leave prepare out and scale x yourself, "
                "or give x as uint8."
            )
        channels = max((len(v) for v in (self.mean, self.std) if isinstance(v, tuple)), default=1)
        has = x.shape[1] if x.dim() == 4 else 1
        if channels not in (1, has):
            raise InputError(f"Pixels has {channels} channels, but x has {has}. Give one number, or {has}.")

    @property
    def _shifts(self) -> bool:
        return self.mean != 0.0

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        pair = torch.broadcast_tensors(1 / (255 * std), -mean / std)
        scale, shift = (t.float().view(-1, 1, 1) if t.dim() else t.float() for t in pair)
        return scale, shift
