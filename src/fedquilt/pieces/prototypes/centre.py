"""A running mean of features over clients and rounds: subtracting it leaves what tells features apart."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedquilt.records.record import record


@record
class Centre:
    """The mean [D] of the rows counted so far, and their weight: how many they are, older rounds counting less."""

    mean: Tensor
    weight: float


def no_rows(width: int) -> Centre:
    """Nothing counted: the mean is zero."""
    return Centre(torch.zeros(width), 0.0)


def moved(centre: Centre, means: Iterable[tuple[Tensor, Tensor]], keep: float = 1.0) -> Centre:
    """The mean after (means [K, D], rows behind each [K]) of some clients.

    Every row counts the same, but those of earlier rounds only ``keep`` times as much with every round: features of a
    model that goes on learning grow old.
    """
    heavy = centre.weight * keep
    total = centre.mean.double() * heavy
    for rows, counts in means:
        total, heavy = total + counts.double() @ rows.double(), heavy + float(counts.sum())
    return Centre((total / heavy).float(), heavy) if heavy else centre
