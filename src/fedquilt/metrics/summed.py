"""Scores of any task, kept as sums over rows so that they add up over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Sums:
    """What is added up over rows.

    Args:
        kind: Of the scores.
        losses: From outputs and targets the loss of each row.
        answers: From outputs what a model answers, in the units of targets.
        statistics: From answers and targets, by name.
    """

    kind: str
    losses: Statistic
    answers: Callable[[Tensor], Tensor]
    statistics: Mapping[str, Statistic]

    def of(self, out: Tensor, y: Tensor) -> Summed:
        """The sums of a client's rows."""
        found = self._block(out, y)
        return found if not self.together else self._with_whole(found, out, y)

    @property
    def together(self) -> dict[str, Statistic]:
        """The statistics that must see all rows of a client."""
        return {name: s for name, s in self.statistics.items() if isinstance(s, OfRows)}

    def _block(self, out: Tensor, y: Tensor) -> Summed:
        answers = self.answers(out.double())
        sums = {name: s(answers, y) for name, s in self.statistics.items() if not isinstance(s, OfRows)}
        return Summed(self.kind, len(y), float(self.losses(out, y).double().sum()), sums)

    def _with_whole(self, found: Summed, out: Tensor, y: Tensor) -> Summed:
        answers = self.answers(out.double())
        whole = {name: s(answers, y) for name, s in self.together.items()}
        return Summed(found.kind, found.rows, found.loss_sum, {**found.sums, **whole})

    def score(self, predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Summed:
        """Score a model on a table, in blocks; outputs are kept only where a statistic needs all of them."""
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode():

            def block(batch: Batch) -> Summed:
                out = predict(params, batch)
                if self.together:
                    kept.append((out, batch.y))
                return self._block(out, batch.y)

            found = reduce(Summed.__add__, map(block, table.blocks(ROWS_PER_BLOCK)))
            if not kept:
                return found
            out, y = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
            return self._with_whole(found, out, y)
