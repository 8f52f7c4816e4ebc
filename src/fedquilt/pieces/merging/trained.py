"""Masks that are trained on a few rows instead of read off magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.allowance import ask
from fedquilt.core.params import Params, add
from fedquilt.core.seed import Seed
from fedquilt.core.select import at_least, threshold
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError


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
