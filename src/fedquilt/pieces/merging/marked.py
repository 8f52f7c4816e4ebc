"""Masks that say which changes count: a mean over those who marked them, and masks that clients train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.memory import ask
from fedquilt.core.params import Mean, Names, Params, add, is_weight
from fedquilt.core.seed import Seed
from fedquilt.core.select import at_least, chosen, threshold
from fedquilt.core.table import Batch, Table
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
        by_samples: w_i are samples instead of 1.
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


@dataclass(frozen=True)
class TrainedMask:
    """Find S that makes loss(theta + sigmoid(S) * delta) + l1 |sigmoid(S)| small; the mask is sigmoid(S) > 1/2.

    S starts at +5 for the largest ``keep`` of the changes and at -5 elsewhere. A step is
    S <- S - (lr * gradient * delta + l1) * sigmoid'(S): the loss has a learning rate of its own, because gradients
    times changes are tiny where the penalty's gradient is 1.

    Args:
        shots: Rows of each class that are used, at most.
        epochs, batch_size: Passes over those rows.
        lr: Of the loss.
        l1: Of the penalty.

    Reference: He et al., Localize-and-Stitch, 2025, section 3.1.
    """

    shots: int = 64
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e7
    l1: float = 1.0

    def __post_init__(self) -> None:
        if min(self.shots, self.epochs, self.batch_size) < 1 or self.lr < 0 or self.l1 < 0:
            raise InputError(f"A trained mask needs counts >= 1 and rates >= 0, got {self}.")

    def __call__(
        self,
        loss: Callable[[Params, Batch], Tensor],
        start: Params,
        delta: Params,
        keep: float,
        rows: Table,
        seed: Seed,
    ) -> Params:
        """The mask of each changed weight.

        Args:
            loss: Of a whole model on a batch.
            start: The whole model before.
            delta: What training changed, weights only.
            keep: Where S starts.
            rows: The client's own.
            seed: Which rows, and in which order.
        """
        first = at_least(delta, threshold(delta, keep))
        s = {n: torch.where(m, 5.0, -5.0) for n, m in first.items()}
        few = some_of_each(rows, self.shots, seed.fold("shots"))
        ask(self.epochs, self.epochs * -(-len(few) // self.batch_size))
        for batch in few.batches(self.batch_size, self.epochs, seed.fold("mask")):
            share = {n: torch.sigmoid(t) for n, t in s.items()}
            whole = {**start, **add({n: start[n] for n in delta}, {n: share[n] * delta[n] for n in delta})}
            weights = [whole[n].requires_grad_() for n in delta]
            gradients = torch.autograd.grad(loss(whole, batch), weights, materialize_grads=True)
            for (name, change), gradient in zip(delta.items(), gradients, strict=True):
                s[name] = s[name] - (self.lr * gradient * change + self.l1) * share[name] * (1 - share[name])
        return {n: t > 0 for n, t in s.items()}


def some_of_each(rows: Table, shots: int, seed: Seed) -> Table:
    """At most so many rows of each class, drawn without replacement."""
    places, draw = rows.all_rows(), seed.torch()
    labels = rows.columns["y"].index_select(0, places)
    order = torch.randperm(len(places), generator=draw)
    taken = [order[labels[order] == c][:shots] for c in labels.unique().tolist()]
    return Table(rows.columns, places[torch.cat(taken)], rows.prepare)
