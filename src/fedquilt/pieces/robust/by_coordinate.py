"""Rules that look at each number of the model by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.pieces.robust.vectors import RobustAggregator, Vectors, check_byzantine, check_enough, count_of

_EQUAL = 1e-12  # shares that differ by less are equal


@dataclass(frozen=True, kw_only=True)
class median(RobustAggregator):
    """The weighted median of each number: half of the samples lie on each side of it.

    Between two values that share the middle, their mean.

    Reference: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.

    Example:
        >>> aggregate = median()
    """

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The medians."""
        return vectors.by_coordinate(lambda piece: weighted_median(piece, vectors.weights))


@dataclass(frozen=True, kw_only=True)
class trimmed_mean(RobustAggregator):
    """The weighted mean of each number without its lowest and highest: a share f / n of the weight on each side.

    A client whose weight reaches over the edge counts with what lies inside.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.

    Reference: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.

    Example:
        >>> aggregate = trimmed_mean(byzantine=0.1)
    """

    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The trimmed means."""
        n = len(vectors)
        false = count_of(self.byzantine, n)
        check_enough("trimmed_mean", n, 2 * false + 1, false)
        edge = false / n

        def inside(piece: Tensor) -> Tensor:
            values, places = _ordered(piece)
            upper = vectors.weights[places].cumsum(1)
            lower = upper - vectors.weights[places]
            shares = (upper.clamp(max=1 - edge) - lower.clamp(min=edge)).clamp(min=0)
            return (shares * values).sum(1) / shares.sum(1)

        return vectors.by_coordinate(inside)


@dataclass(frozen=True, kw_only=True)
class meamed(RobustAggregator):
    """The weighted mean of the n - f values of each number that lie nearest to their median.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.

    Reference: Xie et al., Generalized Byzantine-tolerant SGD, 2018.

    Example:
        >>> aggregate = meamed(byzantine=0.1)
    """

    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The means around the medians."""
        n = len(vectors)
        false = count_of(self.byzantine, n)
        check_enough("meamed", n, 2 * false + 1, false)
        return vectors.by_coordinate(lambda piece: around_median(piece, vectors.weights, n - false))


@dataclass(frozen=True, kw_only=True)
class bulyan(RobustAggregator):
    """Choose n - 2 f replies, one after another by ``krum``; of each number, the mean of those nearest to the median.

    So many numbers are averaged as replies were chosen, less 2 f. It needs 4 f + 3 replies, and samples do not weigh
    in the choice. Time grows with the square of the number of replies.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.

    Reference: El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, 2018.

    Example:
        >>> aggregate = bulyan(byzantine=0.1)
    """

    byzantine: float = 0.1

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The means around the medians of the chosen."""
        n = len(vectors)
        false = count_of(self.byzantine, n)
        check_enough("bulyan", n, 4 * false + 3 if false else 1, false)
        left, chosen = list(range(n)), list[int]()
        while len(chosen) < n - 2 * false:
            near = vectors.distances[left][:, left].fill_diagonal_(-1.0).sort(dim=1).values[:, 1:]
            scores = near[:, : max(len(left) - false - 2, 1)].sum(dim=1)
            chosen.append(left.pop(int(scores.argmin())))
        chosen.sort()
        mix = torch.eye(n, dtype=torch.float64)[chosen]
        picked = vectors.mixed(mix, vectors.weights[chosen])
        return picked.by_coordinate(lambda piece: around_median(piece, picked.weights, n - 4 * false))


def _ordered(piece: Tensor) -> tuple[Tensor, Tensor]:
    """Each column as a row in ascending order, and where its numbers were; numpy sorts short rows fastest."""
    rows = piece.T.contiguous().numpy()
    places = np.argsort(rows, axis=1)
    return torch.from_numpy(np.take_along_axis(rows, places, axis=1)), torch.from_numpy(places)


def weighted_median(piece: Tensor, weights: Tensor) -> Tensor:
    """The weighted median of each column."""
    values, places = _ordered(piece)
    below = weights[places].cumsum(1)
    low = (below < 0.5 - _EQUAL).sum(1, keepdim=True)
    high = (below <= 0.5 + _EQUAL).sum(1, keepdim=True).clamp(max=len(weights) - 1)
    return ((values.gather(1, low) + values.gather(1, high)) / 2)[:, 0]


def around_median(piece: Tensor, weights: Tensor, keep: int) -> Tensor:
    """The weighted mean of each column's values that are nearest to its median, so many of them."""
    away = (piece - weighted_median(piece, weights)).abs()
    nearest = away.sort(dim=0, stable=True).indices[:keep]
    shares = weights[nearest]
    return (shares * piece.gather(0, nearest)).sum(0) / shares.sum(0)
