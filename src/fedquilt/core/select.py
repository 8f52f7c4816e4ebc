"""The largest magnitudes among named tensors: found in linear time, over all tensors together, without sorting."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

_TOP, _LOW = 1 << 15, 1 << 16  # a float32 that is not negative: 15 leading and 16 trailing bits, in numeric order


def how_many(keep: float, total: int) -> int:
    """max(1, floor(keep * total)): how many numbers a density keeps."""
    if not 0 < keep <= 1:
        raise InputError(f"keep is the fraction of values to keep, in (0, 1], got {keep}.")
    return max(1, math.floor(keep * total + 1e-9))  # 0.29 * 100 is 28.999...


def kth_largest(magnitudes: Tensor, k: int) -> float:
    """The k-th largest of some float32 numbers, k from 1; the tensor is left as it is."""
    if not 1 <= k <= magnitudes.numel():
        raise InputError(f"k must be in 1..{magnitudes.numel()}, got {k}.")
    own = magnitudes.detach().flatten().float().numpy().copy()
    place = len(own) - k
    own.partition(place)
    return float(own[place])


def threshold(delta: Mapping[str, Tensor], keep: float) -> float:
    """tau, the k-th largest |delta| over all tensors together, with k of :func:`how_many`."""
    flat = torch.cat([t.detach().flatten().float() for t in delta.values()]).abs_()
    if not flat.numel():
        raise InputError("There is nothing to choose from: no tensor has a number.")
    return kth_largest(flat, how_many(keep, flat.numel()))


def at_least(delta: Mapping[str, Tensor], tau: float) -> Params:
    """The mask [|delta| >= tau]; equal magnitudes are all in, so it may hold more than k."""
    return {n: t.abs() >= tau for n, t in delta.items()}


def jittered(delta: Mapping[str, Tensor], noise: float, seed: Seed) -> Params:
    """|delta| + N(0, (noise * std(|delta|))^2), never below 0; std is that of all magnitudes together.

    Thresholds chosen by it jitter the density a little. That protects nothing: the values stay what they are.
    """
    if noise < 0:
        raise InputError(f"threshold_noise must be >= 0, got {noise}.")
    flat = torch.cat([t.flatten() for t in delta.values()]).abs()
    scale = noise * float(flat.std()) if flat.numel() > 1 else 0.0
    draw = seed.fold("threshold").torch()
    return {n: (t.abs() + scale * torch.randn(t.shape, generator=draw)).clamp(min=0) for n, t in delta.items()}


def marked(delta: Mapping[str, Tensor], mask: Mapping[str, Tensor]) -> Params:
    """The chosen changes and 0 elsewhere. A chosen change of 0 is written as -0.0, so that the choice can be read off
    the numbers (:func:`chosen`) and nothing has to travel beside them."""
    return {n: torch.where(mask[n], torch.where(t == 0, -0.0, t), 0.0).to(t.dtype) for n, t in delta.items()}


def chosen(delta: Mapping[str, Tensor]) -> Params:
    """The mask of a marked change: what is not +0.0."""
    return {n: (t != 0) | torch.signbit(t) for n, t in delta.items()}


class Selection:
    """The k-th largest magnitude of numbers that come piece by piece, twice: exact, in memory that does not grow.

    The first time (``look``) the leading 15 bits of each magnitude are counted, the second time (``look_closer``) the
    trailing 16 bits of those in the one bin that holds the k-th.
    """

    def __init__(self) -> None:
        self._top = np.zeros(_TOP, dtype=np.int64)
        self._low = np.zeros(_LOW, dtype=np.int64)
        self._bin = -1
        self._rank = 0

    @property
    def count(self) -> int:
        """How many numbers were looked at."""
        return int(self._top.sum())

    def look(self, values: Tensor) -> None:
        """Count some numbers, for the first time."""
        self._top += np.bincount(_halves(values)[1] & (_TOP - 1), minlength=_TOP)

    def settle(self, keep: float) -> None:
        """All numbers were looked at: find the bin of the k-th."""
        if not self.count:
            raise InputError("There is nothing to choose from: no tensor has a number.")
        self._bin, self._rank = _place(self._top, how_many(keep, self.count))

    def look_closer(self, values: Tensor) -> None:
        """Count the same numbers, for the second time."""
        low, top = _halves(values)
        self._low += np.bincount(low[(top & (_TOP - 1)) == self._bin], minlength=_LOW)

    def value(self) -> float:
        """tau."""
        low, _ = _place(self._low, self._rank)
        return float(np.array([self._bin << 16 | low], dtype=np.uint32).view(np.float32)[0])


class Shortlist:
    """As :class:`Selection`, and faster where few are kept: the second time only numbers above a guess are held.

    The first time (``look``) every 16th number is, from which ``settle`` guesses a value below tau. Whether it was is
    known in the end: if fewer than k numbers were found, or many more (ties), there is no ``value``.
    """

    _STEP, _SLACK = 16, 1 << 16

    def __init__(self) -> None:
        self._count, self._most, self._k, self._floor = 0, 0, 0, 0.0
        self._seen: list[Tensor] = []
        self._held: list[np.ndarray] = []

    def look(self, values: Tensor) -> None:
        """Take a sample of some numbers."""
        flat = values.detach().flatten()
        self._count += flat.numel()
        self._seen.append(flat[:: self._STEP].abs().float())

    def settle(self, keep: float) -> None:
        """All numbers were looked at: guess."""
        self._k = how_many(keep, self._count) if self._count else 0
        sample = torch.cat(self._seen) if self._seen else torch.empty(0)
        self._seen = []
        rank = math.ceil(1.1 * keep * sample.numel() + 4 * math.sqrt(keep * sample.numel())) + 1
        self._floor = kth_largest(sample, rank) if rank < sample.numel() else 0.0
        self._most = 2 * self._k + self._SLACK if self._floor > 0 else 0

    def look_closer(self, values: Tensor) -> None:
        """Hold those of the same numbers that may be among the largest."""
        if self._most:
            sizes = np.abs(values.detach().flatten().float().numpy())
            self._held.append(sizes[sizes >= np.float32(self._floor)])
            if sum(map(len, self._held)) > self._most:
                self._most, self._held = 0, []

    def value(self) -> float | None:
        """tau, or None if the guess was no good."""
        if not self._most or sum(map(len, self._held)) < self._k:
            return None
        return kth_largest(torch.from_numpy(np.concatenate(self._held)), self._k)


def _halves(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The trailing and the leading 16 bits of float32 numbers."""
    halves = values.detach().flatten().float().contiguous().numpy().view("<u2")
    return halves[0::2], halves[1::2]


def _place(counts: np.ndarray, k: int) -> tuple[int, int]:
    """The bin that holds the k-th largest, and its rank there."""
    above = np.cumsum(counts[::-1])[::-1]
    found = int(np.flatnonzero(above >= k).max())
    return found, int(k - (above[found] - counts[found]))
