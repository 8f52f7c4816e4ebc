"""A running mean of features over clients and rounds: subtracting it leaves what tells features apart."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedquilt.core.record import record


@record
class Centre:
    """The mean [D] of all rows that were counted so far, and how many."""

    mean: Tensor
    rows: int


def no_rows(width: int) -> Centre:
    """Nothing counted: the mean is zero."""
    return Centre(torch.zeros(width), 0)


def moved(centre: Centre, sums: Iterable[tuple[Tensor, int]]) -> Centre:
    """The mean after (sum of rows [D], number of rows) of some clients: every row counts the same."""
    total, rows = centre.mean.double() * centre.rows, centre.rows
    for part, count in sums:
        total, rows = total + part.double(), rows + count
    return Centre((total / rows).float(), rows) if rows else centre
