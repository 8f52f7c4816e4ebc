"""How much clusters share: a weight that fades over rounds, and what share of it each cluster gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedquilt.core.params import Params, norm, sub, weighted_mean
from fedquilt.errors import InputError

Sharing = Literal["same", "size", "divergence", "shrinkage"]
Changes = Sequence[tuple[int, Params]]  # of the participants of a cluster: examples, and how their part changed


@dataclass(frozen=True)
class fading:
    """lambda(t) = lambda_0 / (1 + alpha t)^p, t from 0; 0 in the last ``last`` of ``rounds`` rounds.

    It never reaches 0 by itself: with (1, 0.1, 1) it is 0.17 at t = 49 and 0.09 at t = 99.
    """

    lambda_0: float = 1.0
    alpha: float = 0.1
    p: float = 1.0
    last: int = 0
    rounds: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lambda_0 <= 1:
            raise InputError(f"lambda_0 must be in [0, 1] (more would extrapolate), got {self.lambda_0}.")
        if self.alpha < 0 or self.p < 0:
            raise InputError(f"lambda_alpha and lambda_p must be >= 0, got {self.alpha} and {self.p}.")
        if self.last < 0 or (self.last and self.rounds is None):
            raise InputError(
                f"anneal_last = {self.last} needs cluster_rounds, the number of rounds after the discovery, to know "
                "which are the last."
            )

    def __call__(self, t: int) -> float:
        if self.last and self.rounds is not None and t >= self.rounds - self.last:
            return 0.0
        return float(self.lambda_0 / (1 + self.alpha * t) ** self.p)


def shares(by: Sharing, own: Sequence[Params], common: Params, heard: Sequence[Changes]) -> list[float]:
    """What share of the common weight each cluster is drawn with.

    Args:
        by: 'same': 1 for all. 'size': 1 - share of the cluster in all examples, so that small clusters borrow more.
            'divergence': min_j d_j / d_k with d_k = |own_k - common|, so that far clusters borrow less. 'shrinkage':
            min(1, V_k / d_k^2) with V_k the variance of own_k, estimated from the scatter of the cluster's
            participants: a cluster borrows as much as its own average is uncertain beside its distance from the common
            one (the positive part of James and Stein's estimator), and nothing once clusters really differ.
        own: The average of each cluster.
        common: The average of all.
        heard: The changes of each cluster's participants.
    """
    sizes = [sum(n for n, _ in part) for part in heard]
    if by == "same":
        return [1.0] * len(own)
    if by == "size":
        return [1 - n / max(sum(sizes), 1) for n in sizes]
    far = [norm(sub(e, common)) if n else math.inf for e, n in zip(own, sizes, strict=True)]
    return _by_distance(far) if by == "divergence" else _by_variance(far, variances(heard))


def _by_distance(far: Sequence[float]) -> list[float]:
    return [min(far) / d if d > 0 else 1.0 for d in far]


def _by_variance(far: Sequence[float], spread: Sequence[float]) -> list[float]:
    return [min(1.0, v / d**2) if d > 0 else 1.0 for v, d in zip(spread, far, strict=True)]


def variances(heard: Sequence[Changes]) -> list[float]:
    """Of each cluster's mean: s^2 sum p_i^2, with s^2 the unbiased scatter of one participant.

    A lone participant shows no scatter; it is taken to be that of the others, 0 where all are alone.
    """
    found = [_scatter(part) for part in heard]
    known = [(scatter, size) for scatter, _, size in found if scatter is not None]
    usual = sum(s * n for s, n in known) / max(sum(n for _, n in known), 1)
    return [(usual if scatter is None else scatter) * square for scatter, square, _ in found]


def _scatter(part: Changes) -> tuple[float | None, float, int]:
    """Of a cluster's participants: the unbiased scatter of one (None of a lone one), sum p_i^2, and all examples."""
    some = [(n, change) for n, change in part if n > 0]
    size = sum(n for n, _ in some)
    parts = [(n / size, change) for n, change in some]
    centre = weighted_mean(parts)
    apart = sum(p * norm(sub(change, centre)) ** 2 for p, change in parts)
    square = sum(p * p for p, _ in parts)
    return apart / (1 - square) if len(some) > 1 else None, square, size
