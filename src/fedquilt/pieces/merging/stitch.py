"""Stitching: every weight takes the mean of the changes of just those models that changed it much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import Change, Work
from fedquilt.pieces.merging.trim import Per, masks

Conflicts = Literal["mean", "elect", "median"]
Counted = Literal["mask", "nonzero"]
_CONFLICTS, _COUNTED, _PER = ("mean", "elect", "median"), ("mask", "nonzero"), ("all", "tensor")


@dataclass(frozen=True)
class Stitch:
    """theta + sum_i w_i M_i delta_i / sum_i w_i M_i; where no model has a say the weight stays as it is.

    Args:
        keep: The share K of each model's changes that has a say, in (0, 1]; 1 is the mean of the models.
        per: K over 'all' tensors together, or in each 'tensor'.
        count: What the denominator counts: the 'mask', or 'nonzero' changes inside it. They differ only where a change
            is exactly 0, and only the first makes K = 1 the plain mean.
        conflicts: Where changes have both signs: their 'mean' (in which they cancel), the mean of the side that
            outweighs the other ('elect'), or their 'median'.

    Reference: He et al., Localize-and-Stitch, 2025, without data; called 'harmonic' by a later project, but it is the
    arithmetic mean over contributors.
    """

    keep: float = 0.05
    per: Per = "all"
    count: Counted = "mask"
    conflicts: Conflicts = "mean"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(f"keep is the fraction of changes to keep, in (0, 1], got {self.keep}.")
        for name, value, known in (
            ("per", self.per, _PER),
            ("count", self.count, _COUNTED),
            ("conflicts", self.conflicts, _CONFLICTS),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}.")

    def plan(self, work: Work) -> Change:
        """Thresholds first, then tensor by tensor."""
        mask = masks(work.deltas, work.names, self.keep, self.per)

        def change(name: str) -> Tensor:
            deltas = [d[name] for d in work.deltas]
            kept = [mask(i, d) for i, d in enumerate(deltas)]
            places, like = _touched(kept), deltas[0]
            few = 2 * places.numel() < like.numel()
            if few:  # work on these alone: all others stay
                deltas = [d.flatten().index_select(0, places) for d in deltas]
                kept = [m.flatten().index_select(0, places) for m in kept]
            work.report.count(deltas, kept, of=like.numel())
            moves = stitched(deltas, kept, work.weights, self.count, self.conflicts)
            return moves.new_zeros(like.numel()).index_copy_(0, places, moves).view(like.shape) if few else moves

        return change


def _touched(kept: Sequence[Tensor]) -> Tensor:
    """Where any model has a say, as places in the flattened tensor."""
    found = kept[0].clone()
    for mask in kept[1:]:
        found |= mask
    return torch.from_numpy(np.flatnonzero(found.numpy()))


def stitched(
    deltas: Sequence[Tensor],
    kept: Sequence[Tensor],
    weights: Sequence[float] | None = None,
    count: Counted = "mask",
    conflicts: Conflicts = "mean",
) -> Tensor:
    """The change of one tensor; ``kept`` says which changes of each model have a say."""
    if conflicts == "median":
        return _median(deltas, kept)
    shares = [1.0] * len(deltas) if weights is None else weights
    tally = VoteSums.empty(deltas[0], conflicts == "elect")
    for delta, mask, weight in zip(deltas, kept, shares, strict=True):
        tally.add(delta, mask if count == "mask" else mask & (delta != 0), weight)
    return tally.value()


@dataclass
class VoteSums:
    """sum w v and sum w M of one tensor; with election, one of each for rises and falls (a change of 0 is neither).

    Models are taken in and, as long as their change is known, taken out again, in any number and without the others.
    """

    total: Tensor  # [sides, ...], float64
    votes: Tensor

    @staticmethod
    def empty(like: Tensor, elect: bool = False) -> VoteSums:
        """Nothing yet."""
        shape = (2 if elect else 1, *like.shape)
        return VoteSums(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def add(self, delta: Tensor, mask: Tensor, weight: float = 1.0) -> None:
        """Take in one model's change; a negative weight takes it out."""
        sides = [mask] if len(self.total) == 1 else [mask & (delta > 0), mask & (delta < 0)]
        for side, chosen in enumerate(sides):
            self.total[side].add_(delta.where(chosen, 0.0), alpha=weight)
            self.votes[side].add_(chosen, alpha=weight)

    def value(self) -> Tensor:
        """The mean over contributors, 0 where there is none."""
        if len(self.total) == 1:
            return _over(self.total[0], self.votes[0])
        (rise, fall), (ups, downs) = self.total, self.votes
        means = torch.where(rise > -fall, _over(rise, ups), _over(fall, downs))
        return torch.where(rise == -fall, torch.zeros_like(means), means)  # a draw elects nobody

    def copy(self) -> VoteSums:
        """Another one with the same content."""
        return VoteSums(self.total.clone(), self.votes.clone())


def _over(total: Tensor, votes: Tensor) -> Tensor:
    return torch.where(votes > 0, total / votes.clamp(min=1e-300), torch.zeros_like(total))


def _median(deltas: Sequence[Tensor], kept: Sequence[Tensor]) -> Tensor:
    """The median over contributors, of an even number the mean of the middle two."""
    stack = torch.stack([d.double().masked_fill(~m, torch.inf) for d, m in zip(deltas, kept, strict=True)])
    ordered = stack.sort(0).values
    votes = torch.stack(list(kept)).sum(0, keepdim=True)
    low, high = ((votes - 1) // 2).clamp(min=0), votes // 2
    middle = (ordered.gather(0, low) + ordered.gather(0, high.clamp(max=len(deltas) - 1)))[0] / 2
    return torch.where(votes[0] > 0, middle, torch.zeros_like(middle))
