"""The shape of a merging rule, and what all rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Params, is_weight
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

Named = Mapping[str, Tensor]  # tensors in memory, or such as are read when they are asked for
Change = Callable[[str], Tensor]


@dataclass
class MergeReport:
    """What a merge did, counted while it went: numbers, kept numbers of each model, and where models disagreed.

    Args:
        numbers: How many weights the rule merged.
        kept: How many of each model's changes had a say.
        touched: Weights that at least one model changed.
        shared: Weights that at least two models changed.
        conflicts: Weights whose changes had both signs.
    """

    numbers: int = 0
    kept: list[int] = field(default_factory=list)
    touched: int = 0
    shared: int = 0
    conflicts: int = 0

    def count(self, deltas: Sequence[Tensor], masks: Sequence[Tensor], of: int | None = None) -> None:
        """Take in one tensor: its changes and which of them have a say; ``of`` so many, if some are left out here."""
        votes = torch.zeros_like(masks[0], dtype=torch.int16)
        up, down = torch.zeros_like(masks[0]), torch.zeros_like(masks[0])
        kept = []
        for delta, mask in zip(deltas, masks, strict=True):
            votes += mask
            up |= mask & (delta > 0)
            down |= mask & (delta < 0)
            kept.append(int(mask.count_nonzero()))
        self.kept = [a + b for a, b in zip(self.kept or [0] * len(kept), kept, strict=True)]
        self.numbers += votes.numel() if of is None else of
        self.touched += int(votes.count_nonzero())
        self.shared += int((votes > 1).count_nonzero())
        self.conflicts += int((up & down).count_nonzero())

    def summary(self) -> dict[str, Any]:
        """The counts as shares."""
        whole = max(self.numbers, 1)
        return {
            "numbers": self.numbers,
            "density": [k / whole for k in self.kept],
            "touched": self.touched / whole,
            "shared": self.shared / whole,
            "conflicts": self.conflicts / whole,
            "conflicts_among_shared": self.conflicts / max(self.shared, 1),
        }


@dataclass(frozen=True)
class Work:
    """What a rule is given.

    Args:
        base: The model that all others began from.
        deltas: What each model changed, in float32 at least.
        names: The weights to be merged. All others are statistics, which no rule touches.
        weights: How much each model counts.
        seed: For rules that draw.
        report: Is filled while tensors are merged.
    """

    base: Named
    deltas: Sequence[Named]
    names: Sequence[str]
    weights: Sequence[float]
    seed: Seed
    report: MergeReport


class MergeRule(Protocol):
    """How several models become one."""

    def plan(self, work: Work) -> Change:
        """After what must be known of all tensors at once: the function that tells the change of one tensor."""
        ...


def weights_of(dtypes: Mapping[str, torch.dtype]) -> list[str]:
    """The names that rules merge: float tensors that are no statistics."""
    return [n for n, kind in dtypes.items() if kind.is_floating_point and is_weight(n)]


def merged(rule: MergeRule, work: Work) -> Iterator[tuple[str, Tensor]]:
    """The merged model, one tensor after another: weights by the rule, float statistics by the plain mean over
    models, integers as in the base. Nothing is changed in place."""
    if not work.deltas:
        raise InputError("There is nothing to merge: no model was given.")
    change, chosen = rule.plan(work), set(work.names)
    for name in work.base:
        start = work.base[name]
        if name in chosen:
            yield name, moved(start, change(name))
        elif start.is_floating_point():
            yield name, moved(start, weighted_mean([1.0] * len(work.deltas), [d[name] for d in work.deltas]))
        else:
            yield name, start


def merge(
    rule: MergeRule,
    base: Named,
    models: Sequence[Named],
    *,
    weights: Sequence[float] | None = None,
    seed: Seed | None = None,
) -> tuple[Params, MergeReport]:
    """Several models as one, in memory; and what happened."""
    names = weights_of({n: t.dtype for n, t in base.items()})
    deltas = [Difference(m, base) for m in models]
    work = Work(base, deltas, names, check_weights(weights, len(models)), seed or Seed(0), MergeReport())
    return dict(merged(rule, work)), work.report


class Difference(Mapping[str, Tensor]):
    """after - before, made when it is asked for, in float32 at least."""

    def __init__(self, after: Named, before: Named) -> None:
        self.after, self.before = after, before

    def __getitem__(self, name: str) -> Tensor:
        return wide(self.after[name]) - wide(self.before[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.before)

    def __len__(self) -> int:
        return len(self.before)


def wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def moved(start: Tensor, change: Tensor) -> Tensor:
    """start + change, in the dtype of the start."""
    return (wide(start) + change).to(start.dtype)


def weighted_mean(weights: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    """sum w_i t_i / sum w_i, in float64, summed in order."""
    total = weighted_sum(weights, tensors)
    return total / sum(weights)


def weighted_sum(weights: Sequence[float], tensors: Iterable[Tensor]) -> Tensor:
    """sum w_i t_i, in float64, summed in order."""
    total: Tensor | None = None
    for weight, tensor in zip(weights, tensors, strict=True):
        total = tensor.double() * weight if total is None else total.add_(tensor, alpha=weight)
    if total is None:
        raise InputError("There is nothing to add up.")
    return total


def check_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """One weight for each model; None counts all the same."""
    given = [1.0] * count if weights is None else [float(w) for w in weights]
    if len(given) != count:
        raise InputError(f"There are {count} models but {len(given)} weights.")
    if count and (not all(map(math.isfinite, given)) or min(given) < 0 or not any(given)):
        raise InputError(f"Weights must be finite, >= 0 and not all 0, got {given}.")
    return given


@dataclass(frozen=True)
class merging:
    """A rule as an aggregator: the clients' changes are merged by it.

    Args:
        rule: The rule.
        by_samples: Clients count by their samples, where the rule weighs; otherwise all the same.

    Example:
        >>> from fedquilt.pieces.merging.ties import Ties
        >>> aggregate = merging(Ties(keep=0.2))
    """

    rule: MergeRule
    by_samples: bool = False

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        heard = list(replies)
        if not heard:
            return current
        weights = [float(r.samples) if self.by_samples else 1.0 for r in heard]
        names = weights_of({n: t.dtype for n, t in current.items()})
        work = Work(current, [r.upload.delta for r in heard], names, weights, context.seed.fold("merge"), MergeReport())
        return dict(merged(self.rule, work))
