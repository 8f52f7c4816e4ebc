"""What is done to replies before a rule: each is replaced by a mean of several, or shortened."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.robust.vectors import RobustAggregator, Vectors, check_byzantine, check_enough, count_of, mean_of


@dataclass(frozen=True, kw_only=True)
class nearest_mixing(RobustAggregator):
    """Replace each reply by the mean of the n - f replies nearest to it, itself among them; then another rule.

    Honest replies come closer to each other, so that rules which look for the odd ones go wrong less often where
    clients really differ. Time grows with the square of the number of replies.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.
        then: The rule; by default the mean.

    Reference: Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, 2023.

    Example:
        >>> from fedquilt.pieces.robust import median
        >>> aggregate = nearest_mixing(byzantine=0.2, then=median())
    """

    then: RobustAggregator | None = None
    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """Mix, and go on."""
        n = len(vectors)
        false = count_of(self.byzantine, n)
        check_enough("nearest_mixing", n, false + 1, false)
        nearest = vectors.distances.clone().fill_diagonal_(-1.0).argsort(dim=1, stable=True)[:, : n - false]
        mix = torch.zeros(n, n, dtype=torch.float64).scatter_(1, nearest, vectors.weights[nearest])
        return _go_on(self.then, vectors.mixed(_rows_to_one(mix), vectors.weights), seed)


@dataclass(frozen=True, kw_only=True)
class bucketing(RobustAggregator):
    """Put the replies into buckets at random, anew each round, and replace each bucket by its mean; then another rule.

    Args:
        size: Replies of a bucket; the last one may have fewer.
        then: The rule; by default the mean. False replies spoil a bucket each, so it must bear a larger share.

    Reference: Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    Example:
        >>> from fedquilt.pieces.robust import geometric_median
        >>> aggregate = bucketing(size=2, then=geometric_median())
    """

    then: RobustAggregator | None = None
    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"bucketing needs a size of at least 1, got {self.size}.")

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """Fill the buckets, and go on."""
        n = len(vectors)
        order = torch.from_numpy(seed.fold("buckets").numpy().permutation(n))
        mix = torch.zeros(math.ceil(n / self.size), n, dtype=torch.float64)
        mix[torch.arange(n) // self.size, order] = vectors.weights[order]
        return _go_on(self.then, vectors.mixed(_rows_to_one(mix), mix.sum(dim=1)), seed)


@dataclass(frozen=True, kw_only=True)
class arc(RobustAggregator):
    """Shorten the longest replies to the length of the longest that is left alone; then another rule.

    Of n replies, floor(2 f (n - f) / n) are shortened: adaptive robust clipping.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.
        then: The rule; by default the mean.

    Reference: Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, 2024.

    Example:
        >>> from fedquilt.pieces.robust import trimmed_mean
        >>> aggregate = arc(byzantine=0.2, then=trimmed_mean(byzantine=0.2))
    """

    then: RobustAggregator | None = None
    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """Shorten, and go on."""
        n = len(vectors)
        false = count_of(self.byzantine, n)
        check_enough("arc", n, 2 * false + 1, false)
        lengths = vectors.lengths
        radius = lengths.sort().values[n - int(2 * false / n * (n - false)) - 1]
        factors = torch.where(lengths > radius, radius / lengths.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
        return _go_on(self.then, vectors.mixed(torch.diag(factors), vectors.weights), seed)


def _go_on(then: RobustAggregator | None, vectors: Vectors, seed: Seed) -> Params:
    return mean_of(vectors) if then is None else then.merge(vectors, seed.fold("then"))


def _rows_to_one(mix: Tensor) -> Tensor:
    return mix / mix.sum(dim=1, keepdim=True)
