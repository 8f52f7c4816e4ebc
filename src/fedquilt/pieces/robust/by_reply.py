"""Rules that decide how much of each reply counts: what they make is a weighted sum of the clients' changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Mean, Params, add, same_names
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.robust.vectors import (
    RobustAggregator,
    Vectors,
    check_byzantine,
    check_enough,
    count_of,
    groups,
    length,
    middle_counts,
    quantile,
    shortened,
)


@dataclass(frozen=True, kw_only=True)
class clip_norm(RobustAggregator):
    """Shorten the changes that are longer than c, then average: sum_i p_i d_i min(1, c / |d_i|).

    Nobody is left out, and nobody moves the model by more than ``p_i c``. Where clients really differ this is the rule
    to begin with: weighted, it stays unbiased as long as honest changes are about as long as each other.

    Args:
        radius: c. None takes the quantile below of this round's lengths.
        quantile: Of the lengths, weighted as the clients are; with 0.5, half of the samples are never shortened.
        then: What is done with the shortened changes; by default the mean.

    Reference: Sun et al., Can You Really Backdoor Federated Learning?, 2019 (fixed radius).

    Example:
        >>> aggregate = clip_norm(radius=5.0)
    """

    radius: float | None = None
    quantile: float = 0.5
    then: RobustAggregator | None = None

    def __post_init__(self) -> None:
        _check_radius("clip_norm", self.radius)
        if not 0 < self.quantile <= 1:
            raise InputError(f"clip_norm needs a quantile in (0, 1], got {self.quantile}.")

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        if self.radius is None or self.then is not None:
            return super().__call__(current, replies, context)
        total, counts, whole = Mean(), list[Params](), 0.0  # replies stream: none is kept
        for reply in replies:
            delta, weight = reply.upload.delta, float(reply.samples if self.by_samples else 1)
            vectors = [{n: delta[n] for n in names} for names in groups(delta, self.per)]
            lengths = torch.tensor([length(part) for part in vectors], dtype=torch.float64)
            for part, factor in zip(vectors, shortened(lengths, self.radius).tolist(), strict=True):
                total.add(part, weight * factor)
            counts.append({n: t for n, t in delta.items() if not t.is_floating_point()})
            whole += weight
        if not counts:
            return current
        total.weight = whole
        merged = {**total.value(), **middle_counts(counts)}
        return add(current, {n: merged[n] for n in current})

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The mean of shortened changes, or what ``then`` makes of them."""
        lengths = vectors.lengths
        radius = quantile(lengths, vectors.weights, self.quantile) if self.radius is None else self.radius
        factors = shortened(lengths, radius)
        if self.then is None:
            return vectors.combined(vectors.weights * factors)
        return self.then.merge(vectors.mixed(torch.diag(factors), vectors.weights), seed)


@dataclass(frozen=True, kw_only=True)
class centred_clip(RobustAggregator):
    """Average what lies within c of the average, again and again: v <- v + sum_i p_i (d_i - v) min(1, c / |d_i - v|).

    It begins at the model of the round (v = 0). Distances come from the inner product of each two changes, so its time
    grows with the square of the number of replies.

    Args:
        radius: c. None takes the weighted median of the distances from v, anew in each pass.
        passes: How often.

    Reference: Karimireddy et al., Learning from History for Byzantine Robust Optimization, 2021.

    Example:
        >>> aggregate = centred_clip(radius=5.0, passes=3)
    """

    radius: float | None = None
    passes: int = 3

    def __post_init__(self) -> None:
        _check_radius("centred_clip", self.radius)
        _check_passes("centred_clip", self.passes)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The centre after so many passes."""
        share = torch.zeros(len(vectors), dtype=torch.float64)
        for _ in range(self.passes):
            away = _distances_from(share, vectors)
            radius = quantile(away, vectors.weights, 0.5) if self.radius is None else self.radius
            pull = vectors.weights * shortened(away, radius)
            share = share + pull - pull.sum() * share
        return vectors.combined(share)


@dataclass(frozen=True, kw_only=True)
class geometric_median(RobustAggregator):
    """The point whose distances from all changes have the smallest weighted sum, by Weiszfeld's passes.

    z <- sum_i b_i d_i / sum_i b_i with b_i = p_i / max(nu, |d_i - z|), from z = 0. As long as false replies hold less
    than half of the weight, they cannot move it far. This is the rule of RFA. Time grows with the square of the number
    of replies.

    Args:
        passes: How often.
        smoothing: nu, the least distance that counts.

    Reference: Pillutla et al., Robust Aggregation for Federated Learning, 2022.

    Example:
        >>> aggregate = geometric_median(passes=8)
    """

    passes: int = 8
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        _check_passes("geometric_median", self.passes)
        if not self.smoothing > 0:
            raise InputError(f"geometric_median needs smoothing > 0, got {self.smoothing}.")

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The point after so many passes."""
        share = torch.zeros(len(vectors), dtype=torch.float64)
        for _ in range(self.passes):
            pull = vectors.weights / _distances_from(share, vectors).clamp(min=self.smoothing)
            share = pull / pull.sum()
        return vectors.combined(share)


@dataclass(frozen=True, kw_only=True)
class krum(RobustAggregator):
    """The one change that lies nearest to its n - f - 1 nearest others (mean of squared distances).

    Samples do not weigh here. With clients that really differ, one client's change is a poor model for all: see
    ``multi_krum`` and ``nearest_mixing``. Time grows with the square of the number of replies.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.

    Reference: Blanchard et al., Machine Learning with Adversaries, 2017.

    Example:
        >>> aggregate = krum(byzantine=0.2)
    """

    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The chosen change."""
        share = torch.zeros(len(vectors), dtype=torch.float64)
        share[int(krum_scores(vectors, self.byzantine, "krum").argmin())] = 1.0
        return vectors.combined(share)


@dataclass(frozen=True, kw_only=True)
class multi_krum(RobustAggregator):
    """The mean of the n - f changes with the best scores of ``krum``, weighted by samples.

    Args:
        byzantine: f, how many replies may be false: a share of the cohort, or a count.

    Reference: Blanchard et al., Machine Learning with Adversaries, 2017.

    Example:
        >>> aggregate = multi_krum(byzantine=2)
    """

    byzantine: float = 0.2

    def __post_init__(self) -> None:
        check_byzantine(self.byzantine)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The mean of the chosen."""
        n = len(vectors)
        best = krum_scores(vectors, self.byzantine, "multi_krum").argsort(stable=True)
        share = torch.zeros(n, dtype=torch.float64)
        chosen = best[: n - count_of(self.byzantine, n)]
        share[chosen] = vectors.weights[chosen]
        return vectors.combined(share / share.sum())


@dataclass(frozen=True, kw_only=True)
class fltrust(RobustAggregator):
    """Clients count by how much they agree with a change that the server itself made on samples it trusts.

    sum_i t_i |r| d_i / |d_i| / sum_i t_i with t_i = max(0, cos(d_i, r)), r the server's change. Without anybody who
    agrees the model stays. Samples do not weigh, unless asked for.

    Args:
        reference: ``(current, context) -> change`` of the server: what it learned itself from the same model.

    Reference: Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, 2021.

    Example:
        >>> aggregate = fltrust(reference=lambda current, context: current)
    """

    reference: Callable[[Params, Context], Params]
    by_samples: bool = False

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        heard = list(replies)
        if not heard:
            return current
        change = self.reference(current, context)
        same_names(current, change, "the server's own change")
        own = Reply(None, 0, _Own(change))
        return super().__call__(current, [*heard, own], context)

    def merge(self, vectors: Vectors, seed: Seed) -> Params:
        """The last vector is the server's own."""
        products, lengths = vectors.products[-1, :-1], vectors.lengths
        own, others = lengths[-1], lengths[:-1].clamp(min=torch.finfo(torch.float64).tiny)
        trust = (products / (others * own.clamp(min=torch.finfo(torch.float64).tiny))).clamp(min=0)
        trust = trust * (vectors.weights[:-1] * (len(vectors) - 1) if self.by_samples else 1.0)
        share = torch.zeros(len(vectors), dtype=torch.float64)
        if trust.sum() > 0:
            share[:-1] = trust / trust.sum() * own / others
        return vectors.combined(share)


@dataclass(frozen=True)
class _Own:
    delta: Params


def krum_scores(vectors: Vectors, byzantine: float, rule: str) -> Tensor:
    """For each vector, the mean squared distance of its n - f - 1 nearest others."""
    n = len(vectors)
    false = count_of(byzantine, n)
    check_enough(rule, n, max(2 * false + 1, 1), false)
    if n == 1:
        return torch.zeros(1, dtype=torch.float64)
    others = vectors.distances.clone().fill_diagonal_(-1.0).sort(dim=1).values[:, 1:]
    return others[:, : max(n - false - 1, 1)].mean(dim=1)


def _distances_from(share: Tensor, vectors: Vectors) -> Tensor:
    """How far each vector is from sum_i share_i vector_i."""
    along = vectors.products @ share
    return (vectors.products.diagonal() - 2 * along + share @ along).clamp(min=0).sqrt()


def _check_radius(rule: str, radius: float | None) -> None:
    if radius is not None and not radius > 0:
        raise InputError(f"{rule} needs a radius > 0, or none, got {radius}.")


def _check_passes(rule: str, passes: int) -> None:
    if passes < 1:
        raise InputError(f"{rule} needs passes >= 1, got {passes}.")
