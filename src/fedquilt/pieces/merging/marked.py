"""Stitching changes that clients have localised themselves, one reply after another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Mean, Names, Params, is_weight
from fedquilt.core.select import chosen
from fedquilt.errors import InputError
from fedquilt.pieces.merging.rule import moved
from fedquilt.pieces.merging.stitch import Conflicts, Counted, VoteSums, stitched

Divide = Literal["votes", "clients"]


@dataclass(frozen=True)
class stitch_marked:
    """theta + sum w_i v_i / sum w_i M_i over changes that tell which of their numbers were chosen.

    Weights are stitched, float statistics averaged plainly over clients, integers stay as they are.

    Args:
        count, conflicts: As for :class:`fedquilt.pieces.merging.stitch.Stitch`.
        by_examples: w_i are examples instead of 1.
        divide: By the 'votes' for each weight, or by all 'clients' that replied, which is right when what was not sent
            comes later (error feedback).
        only: Which names are weights.
    """

    count: Counted = "mask"
    conflicts: Conflicts = "mean"
    by_samples: bool = False
    divide: Divide = "votes"
    only: Names = is_weight

    def __post_init__(self) -> None:
        if self.divide not in ("votes", "clients"):
            raise InputError(f"divide must be 'votes' or 'clients', got {self.divide!r}.")
        if self.divide == "clients" and self.conflicts != "mean":
            raise InputError(f"conflicts = {self.conflicts!r} divides by votes; divide = 'clients' needs 'mean'.")

    def __call__(self, current: Params, replies: Iterable[Reply[HasDelta]], context: Context) -> Params:
        floats = [n for n, t in current.items() if t.is_floating_point()]
        weights = [n for n in floats if self.only(n)]
        others = [n for n in floats if not self.only(n)]
        changes, statistics = _Changes(self, {n: current[n] for n in weights}), Mean()
        for reply in replies:
            delta = reply.upload.delta
            changes.add({n: delta[n] for n in weights}, float(reply.samples) if self.by_samples else 1.0)
            statistics.add({n: delta[n] for n in others}, 1)
        if not statistics.weight:
            return current
        found = statistics.value() | {n: changes.value(n) for n in weights}
        return current | {n: moved(current[n], found[n]) for n in floats}


class _Changes:
    """What came in so far: sums, or for medians all of it."""

    def __init__(self, rule: stitch_marked, like: Params) -> None:
        self.rule, self.weight = rule, 0.0
        self.kept: list[Params] = []
        self.tallies = {n: VoteSums.empty(t, rule.conflicts == "elect") for n, t in like.items()}

    def add(self, delta: Params, weight: float) -> None:
        """Take in one client."""
        self.weight += weight
        if self.rule.conflicts == "median":
            self.kept.append(delta)
            return
        masks = chosen(delta) if self.rule.count == "mask" else {n: t != 0 for n, t in delta.items()}
        for name, tensor in delta.items():
            self.tallies[name].add(tensor, masks[name], weight)

    def value(self, name: str) -> torch.Tensor:
        """The change of one tensor."""
        if self.rule.conflicts == "median":
            deltas = [d[name] for d in self.kept]
            return stitched(deltas, [chosen({name: d})[name] for d in deltas], conflicts="median")
        tally = self.tallies[name]
        return tally.total[0] / self.weight if self.rule.divide == "clients" else tally.value()
