"""Transforms of inputs: steps from stored rows to what a network takes, some of them random, in training only.

A step is a frozen dataclass over a stack of inputs x. A fixed step is called with x; a random one has
``drawn(x, generator)`` instead, and must not change the shape of x. All work on whole batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedquilt.core.columns import Column, blank_of, fitted, sums_of
from fedquilt.core.seed import Seed
from fedquilt.core.table import Columns, Table
from fedquilt.data.images import on_floats
from fedquilt.data.prepare import PerChannel, Pixels
from fedquilt.data.tabular import is_table
from fedquilt.errors import InputError


@dataclass(frozen=True)
class Resize:
    """Images of ``size`` x ``size``, by bilinear sampling; smaller ones average over what they leave out (antialias).

    Bytes stay bytes, rounded.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"Resize: size must be at least 1, got {self.size}.")

    def __call__(self, x: Tensor) -> Tensor:
        _check_images("Resize", x)
        if x.shape[2:] == (self.size, self.size):
            return x
        shape = (self.size, self.size)
        return on_floats(x, lambda v: F.interpolate(v, shape, mode="bilinear", align_corners=False, antialias=True))


@dataclass(frozen=True)
class GreyToRGB:
    """Images of one channel, three times over; images of three stay as they are."""

    def __call__(self, x: Tensor) -> Tensor:
        _check_images("GreyToRGB", x)
        if x.shape[1] not in (1, 3):
            raise InputError(f"GreyToRGB takes images of 1 channel (or 3, unchanged), got {x.shape[1]}.")
        return x.expand(-1, 3, -1, -1)


@dataclass(frozen=True)
class Normalise:
    """x -> (x - mean) / std, for each channel of images and each column of tables; bytes first come to the scale 0 to
    1, as with :class:`Pixels`.

    Args:
        mean, std: One number, or one per channel. None, for both: those of all clients' training samples; a federation
            made from a recipe fills them in, others use :func:`channel_statistics`.
    """

    mean: PerChannel | None = None
    std: PerChannel | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise InputError(f"Normalise: give mean and std, or neither, got {self.mean!r} and {self.std!r}.")
        if self.mean is not None and self.std is not None:
            checked = Pixels(self.mean, self.std)
            object.__setattr__(self, "mean", checked.mean)
            object.__setattr__(self, "std", checked.std)

    def __call__(self, x: Tensor) -> Tensor:
        if self.mean is None:
            raise InputError("Normalise has no numbers yet. Give mean and std, for example of channel_statistics(...).")
        self._check(x)
        if x.dtype == torch.uint8:
            return self._pixels({"x": x})["x"]
        mean, std = (t.view(-1, 1, 1) if t.dim() and x.dim() == 4 else t for t in self._numbers)
        return torch.sub(x, mean).div_(std)

    def _check(self, x: Tensor) -> None:
        """Raise unless there is one number, or one for each channel or column."""
        if x.dim() != 2:
            self._pixels.check(x.new_empty((0, *x.shape[1:]), dtype=torch.uint8))
            return
        given = max((len(v) for v in (self._pixels.mean, self._pixels.std) if isinstance(v, tuple)), default=1)
        if given not in (1, x.shape[1]):
            raise InputError(
                f"Normalise has {given} columns, but x has {x.shape[1]}. Give one number, or {x.shape[1]}."
            )

    @cached_property
    def _pixels(self) -> Pixels:
        return Pixels(self.mean or 0.0, self.std or 1.0)

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self._pixels.mean), torch.tensor(self._pixels.std)


@dataclass(frozen=True)
class RandomCrop:
    """Each image padded with zeros on all sides, and a window of its old size cut out at a random place."""

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 1:
            raise InputError(f"RandomCrop: padding must be at least 1, got {self.padding}.")

    def drawn(self, x: Tensor, generator: Generator) -> Tensor:
        """The top left corners are uniform over the 2 padding + 1 places in either direction."""
        _check_images("RandomCrop", x)
        top, left = torch.randint(2 * self.padding + 1, (2, len(x)), generator=generator)
        windows = F.pad(x, [self.padding] * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        return windows[torch.arange(len(x)), :, top, left]


@dataclass(frozen=True)
class RandomFlip:
    """Each image mirrored left to right with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise InputError(f"RandomFlip: probability must be from 0 to 1, got {self.probability}.")

    def drawn(self, x: Tensor, generator: Generator) -> Tensor:
        """Image i is mirrored if the i-th number in [0, 1) is below the probability."""
        _check_images("RandomFlip", x)
        mirrored = torch.rand(len(x), generator=generator) < self.probability
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)


@dataclass(frozen=True)
class Transforms:
    """The ``prepare`` of a federation that does several things to x, in order.

    Evaluations, and all rows that are only looked at, go through the fixed steps. Training batches also go through the
    random ones, in their places; what they draw follows from the seed of the client update and the number of the batch,
    so that every engine draws the same. Bytes that are left at the end become floats with ``pixels``.

    Args:
        steps: For example ``(Resize(32), RandomCrop(4), RandomFlip())``.
        pixels: How bytes become floats.

    Example:
        >>> prepare = Transforms((Resize(4), RandomFlip()))
        >>> prepare({"x": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)})["x"].shape
        torch.Size([2, 1, 4, 4])
    """

    steps: tuple[Any, ...]
    pixels: Pixels = Pixels()  # noqa: RUF009 - frozen, so it can be shared

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not callable(step) and not hasattr(step, "drawn"):
                raise InputError(f"A transform is called with x, or has drawn(x, generator); {step!r} is neither.")

    def __call__(self, columns: Columns) -> Columns:
        x = columns["x"]
        for step in self.steps:
            if not hasattr(step, "drawn"):
                x = step(x)
        return self._floats({**columns, "x": x})

    def augmented(self, columns: Columns, seed: Seed) -> Columns:
        """As calling it, with the random steps."""
        x = columns["x"]
        for place, step in enumerate(self.steps):
            x = step.drawn(x, seed.fold(place).torch()) if hasattr(step, "drawn") else step(x)
        return self._floats({**columns, "x": x})

    def _floats(self, columns: Columns) -> Columns:
        return self.pixels(columns) if columns["x"].dtype == torch.uint8 else columns

    def check(self, x: Tensor) -> None:
        """Raise unless rows like these can go through every step."""
        row = x[:1]
        for place, step in enumerate(self.steps):
            if isinstance(step, Normalise) and step.mean is None:
                step = Normalise(0.0, 1.0)  # the numbers come later and will fit
            try:
                after = step.drawn(row, Seed(0).torch()) if hasattr(step, "drawn") else step(row)
            except (MemoryError, RuntimeError) as error:  # torch has no error of its own for memory
                first = str(error).partition("\n")[0]
                raise InputError(
                    f"Transform {place}, {step!r}, fails on one row of {tuple(row.shape[1:])}: {first}"
                ) from error
            if hasattr(step, "drawn") and after.shape != row.shape:
                raise InputError(
                    f"Transform {place} ({type(step).__name__}) turns rows of {tuple(row.shape[1:])} into "
                    f"{tuple(after.shape[1:])} in training only; a random transform may not change the shape."
                )
            row = after
        if row.dtype == torch.uint8:
            self.pixels.check(row)
        elif self.pixels != Pixels():
            raise InputError(
                "Rows are floats after the last transform, so that mean and std of pixels have no use. Leave them out, "
                "and normalise with a transform."
            )

    def fitted(self, tables: Iterable[Table]) -> Transforms:
        """With numbers for every :class:`Normalise` that has none: those of these rows, after the steps before it."""
        given = list(tables)
        made: list[Any] = []
        for step in self.steps:
            if isinstance(step, Normalise) and step.mean is None:
                before = Transforms(tuple(s for s in made if not hasattr(s, "drawn")))
                step = Normalise(*channel_statistics([replace(t, prepare=before) for t in given]))
            made.append(step)
        return replace(self, steps=tuple(made))


def _by_channel(x: Tensor) -> Tensor:
    """All values of each channel of images; of anything else in one line."""
    return x.transpose(0, 1).flatten(1) if x.dim() == 4 else x.reshape(1, -1)


def channel_statistics(tables: Sequence[Table]) -> tuple[PerChannel, PerChannel]:
    """Mean and standard deviation of x over all rows: for each channel of images, for each column of tables (floats of
    two dimensions), in all for anything else.

    Bytes are counted on the scale 0 to 1. A channel that never changes has the deviation 1, so that dividing is safe.
    The sums are what clients could send: nothing but two numbers and a count per channel leaves each.
    """
    total = square = torch.zeros(1, dtype=torch.float64)
    count = 0
    if any(len(table) and is_table(table.rows(table.all_rows()[:1]).x) for table in tables):
        rows = [table.whole().x for table in tables if len(table)]
        columns = fitted(blank_of(rows[0].shape[1], "federation"), (sums_of(x, _numbers_only(x)) for x in rows)).columns
        return tuple(c.mean for c in columns), tuple(c.std for c in columns)
    for batch in (batch for table in tables for batch in table.blocks(512)):
        flat = _by_channel(batch.x.double() / (255 if batch.x.dtype == torch.uint8 else 1))
        total, square, count = total + flat.sum(1), square + flat.square().sum(1), count + flat.shape[1]
    if not count:
        raise InputError("There are no rows to take statistics of.")
    mean = total / count
    spread = (square / count - mean.square()).clamp(min=0).sqrt()
    spread = torch.where(spread > 1e-8 + 1e-7 * mean.abs(), spread, 1.0)  # less is what rounding leaves
    pair = tuple(mean.tolist()), tuple(spread.tolist())
    return pair if len(mean) > 1 else (pair[0][0], pair[1][0])


def _numbers_only(x: Tensor) -> tuple[Column, ...]:
    return blank_of(x.shape[1], "federation").columns


def _check_images(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise InputError(f"{name} takes images [n, channels, height, width]; x has shape {tuple(x.shape)}.")
