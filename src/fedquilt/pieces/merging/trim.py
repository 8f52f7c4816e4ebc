"""Localising: which of a model's changes have a say.

How much is kept, round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.select import Selection, Shortlist, at_least, jittered, marked, threshold
from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import Named


@dataclass(frozen=True)
class Density:
    """K_1 = k_init; then K_t = clip(1 - mu * accuracy, k_min, 1) with the accuracy of the merged model before.

    With ``dense_by`` = r instead K_t = k_init + (1 - k_init) min(1, (t - 1) / r): sparse early, dense from round r + 1.

    Args:
        k_init: In the first round, and until an accuracy is known; in (0, 1].
        mu: In [0, 1]. 0.035 gives the densities of the published runs, K from 0.997 to 0.966; 1 really sparsifies.
        k_min: Never less, in (0, 1].
        fixed: If set, K of every round.
        dense_by: If set, after how many rounds K is 1; it rises evenly from ``k_init``.
    """

    k_init: float = 0.95
    mu: float = 0.035
    k_min: float = 0.01
    fixed: float | None = None
    dense_by: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("k_init", self.k_init), ("k_min", self.k_min), ("keep", self.fixed)):
            if value is not None and not 0 < value <= 1:
                raise InputError(f"{name} is a share of what is kept, in (0, 1], got {value}.")
        if not 0 <= self.mu <= 1:
            raise InputError(f"mu must be in [0, 1], got {self.mu}.")
        if self.dense_by is not None and self.dense_by < 1:
            raise InputError(f"dense_by is a number of rounds, 1 or more, got {self.dense_by}.")
        if self.dense_by is not None and self.fixed is not None:
            raise InputError("keep is the K of every round, dense_by lets K rise from k_init. Give one of the two.")

    def __call__(self, accuracy: float | None, merges: int = 0) -> float:
        """K after this accuracy (None before the first) and so many merges."""
        if self.dense_by is not None:
            return self.k_init + (1 - self.k_init) * min(1.0, merges / self.dense_by)
        if self.fixed is not None:
            return self.fixed
        if accuracy is None:
            return self.k_init
        if not 0 <= accuracy <= 1:
            raise InputError(f"An accuracy is a fraction in [0, 1], got {accuracy}.")
        return min(max(1 - self.mu * accuracy, self.k_min), 1.0)


Per = Literal["all", "tensor"]
_FEW = 0.5  # of one model: so many numbers of all models together may be held to choose from


@dataclass(frozen=True)
class Localized:
    """A task vector: the values that are kept (0 elsewhere; see :func:`fedquilt.core.select.marked`), and the mask."""

    values: Params
    mask: Params

    @property
    def density(self) -> float:
        """The share that is really kept; ties can make it more than was asked for."""
        return sum(int(m.sum()) for m in self.mask.values()) / sum(m.numel() for m in self.mask.values())


def localize(delta: Named, keep: float, *, per: Per = "all", noise: float = 0.0, seed: Seed | None = None) -> Localized:
    """v = M * delta with M = [|delta| >= tau], tau the k-th largest |delta| and k = max(1, floor(keep * P)).

    Args:
        delta: What changed, weights only.
        keep: The density, in (0, 1].
        per: One tau over 'all' tensors together, or one for each 'tensor'.
        noise: N(0, (noise * std(|delta|))^2) is added to the magnitudes, only to choose tau; the mask and the values
            are of the clean changes. It jitters the density a little and protects nothing.
        seed: For the noise.
    """
    seen = delta if not noise else jittered(delta, noise, seed or Seed(0))
    if per == "all":
        tau = threshold(seen, keep)
        mask = at_least(delta, tau)
    else:
        mask = {n: t.abs() >= threshold({n: seen[n]}, keep) for n, t in delta.items() if t.numel()}
        mask |= {n: torch.ones_like(t, dtype=torch.bool) for n, t in delta.items() if not t.numel()}
    return Localized(marked(delta, mask), mask)


def taus(deltas: Sequence[Named], names: Sequence[str], keep: float) -> list[float]:
    """tau of each model over all these names, whose tensors are read twice and never held together.

    Where all are kept, nothing is read: any number up to the smallest is such a tau, and 0 is one.
    """
    if keep == 1:
        return [0.0] * len(deltas)
    if keep * len(deltas) <= _FEW:
        found = _twice([Shortlist() for _ in deltas], deltas, names, keep)
        if None not in found:
            return [float(tau) for tau in found if tau is not None]
    return [float(tau) for tau in _twice([Selection() for _ in deltas], deltas, names, keep) if tau is not None]


def _twice(
    found: Sequence[Selection | Shortlist], deltas: Sequence[Named], names: Sequence[str], keep: float
) -> list[float | None]:
    for name in names:
        for selection, delta in zip(found, deltas, strict=True):
            selection.look(delta[name])
    for selection in found:
        selection.settle(keep)
    for name in names:
        for selection, delta in zip(found, deltas, strict=True):
            selection.look_closer(delta[name])
    return [selection.value() for selection in found]


def masks(deltas: Sequence[Named], names: Sequence[str], keep: float, per: Per) -> Callable[[int, Tensor], Tensor]:
    """The function that tells which numbers of model i's change of one tensor are kept."""
    if per == "all":
        each = taus(deltas, names, keep)
        return lambda i, delta: delta.abs() >= each[i]
    return lambda i, delta: delta.abs() >= (threshold({"": delta}, keep) if delta.numel() else 0.0)
