"""Scores of any task, kept as sums over rows so that they add up over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError
from fedquilt.metrics.classify import MOST_ROWS, ROWS_PER_BLOCK
from fedquilt.metrics.own import OfRows
from fedquilt.records.record import record

MOST_SUMS = 2**22  # numbers of one client, from elsewhere
Statistic = Callable[[Tensor, Tensor], Tensor]


@record
class Summed:
    """Sums over rows: how many, their losses, and by name what the task and metrics add up themselves."""

    kind: str
    rows: int
    loss_sum: float
    sums: dict[str, Tensor]

    def check(self) -> None:
        """Raise unless these can be somebody's scores; for those that come from elsewhere."""
        sound = type(self.rows) is int and 0 < self.rows <= MOST_ROWS and type(self.loss_sum) is float
        if not sound or type(self.kind) is not str or not isinstance(self.sums, dict):
            raise InputError("malformed scores: their kinds of numbers")
        if not all(isinstance(s, Tensor) and s.is_floating_point() for s in self.sums.values()):
            raise InputError("malformed scores: their sums")
        if sum(s.numel() for s in self.sums.values()) > MOST_SUMS:
            raise InputError("malformed scores: too many sums")
        if not all(bool(torch.isfinite(s).all()) for s in self.sums.values()):
            raise InputError("malformed scores: their sums are not finite")

    @property
    def loss(self) -> float:
        """Mean loss per row."""
        return self.loss_sum / max(self.rows, 1)

    def __add__(self, other: Summed) -> Summed:
        sums = {name: s + other.sums[name] for name, s in self.sums.items() if name in other.sums}
        return Summed(self.kind, self.rows + other.rows, self.loss_sum + other.loss_sum, sums)


def summed(
    kind: str, losses: Statistic, statistics: Mapping[str, Statistic], out: Tensor, y: Tensor, whole: bool = True
) -> Summed:
    """The sums of some rows; statistics of a client's rows taken together only if these are the ``whole``."""
    sums = {name: s(out, y) for name, s in statistics.items() if whole or not isinstance(s, OfRows)}
    return Summed(kind, len(y), float(losses(out, y).double().sum()), sums)


def score(
    kind: str,
    losses: Statistic,
    statistics: Mapping[str, Statistic],
    predict: Callable[[Params, Batch], Tensor],
    params: Params,
    table: Table,
) -> Summed:
    """Score a model on a table, in blocks; outputs are kept only where a statistic needs all of them."""
    together = {name: s for name, s in statistics.items() if isinstance(s, OfRows)}
    kept: list[tuple[Tensor, Tensor]] = []
    parts: list[Summed] = []
    with torch.inference_mode():
        for block in table.blocks(ROWS_PER_BLOCK):
            out = predict(params, block)
            parts.append(summed(kind, losses, statistics, out, block.y, whole=False))
            kept += [(out, block.y)] if together else []
        found = reduce(Summed.__add__, parts)
        if not together:
            return found
        out, y = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        whole = {name: s(out, y) for name, s in together.items()}
        return Summed(found.kind, found.rows, found.loss_sum, {**found.sums, **whole})
