"""Scores of a model that guesses hidden patches, kept as sums so that they add up over clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError
from fedquilt.records.record import record

MOST_ROWS = 10**9  # of one client, from elsewhere
ROWS_PER_BLOCK = 100


@record
class Reconstructed:
    """Sums over rows: how many, and their losses."""

    rows: int
    loss_sum: float

    def check(self) -> None:
        """Raise unless these can be somebody's scores; for those that come from elsewhere."""
        if type(self.rows) is not int or not 0 < self.rows <= MOST_ROWS or type(self.loss_sum) is not float:
            raise InputError("malformed scores: their kinds of numbers")

    @property
    def loss(self) -> float:
        """Mean loss per row."""
        return self.loss_sum / max(self.rows, 1)

    def __add__(self, other: Reconstructed) -> Reconstructed:
        return Reconstructed(self.rows + other.rows, self.loss_sum + other.loss_sum)


def reconstruct(predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Reconstructed:
    """Score a model on a table; ``predict`` gives the loss of each row."""
    with torch.inference_mode():
        losses = (predict(params, block) for block in table.blocks(ROWS_PER_BLOCK))
        return reduce(Reconstructed.__add__, (Reconstructed(len(part), float(part.sum())) for part in losses))
