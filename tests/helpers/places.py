"""Clients that are points: F_i(w) = |w - c_i|^2 / 2, so that every step of a method can be done by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.data import Federation


class Place(nn.Module):
    """Coordinates 0 and 1 are the body, 2 is the head; all start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.zeros(2))
        self.head = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """The place, once for each row."""
        return torch.cat([self.body, self.head]).expand(len(x), 3)


def half_square(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """mean over rows of |w - x|^2 / 2."""
    return (out - batch.x).square().sum(1).mean() / 2


def downhill(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """-head: a gradient of -1 everywhere."""
    return -params["head"].sum()


LOSS = Objective(Net(Place), (half_square,))


def at(*centres: list[float], copies: tuple[int, ...] | None = None) -> Federation:
    """One client at each of these places, with as many equal rows as copies say."""
    counts = copies or (1,) * len(centres)
    parts = {}
    for client, (centre, count) in enumerate(zip(centres, counts, strict=True)):
        parts[client] = {
            "train": (torch.tensor([centre] * count, dtype=torch.float32), torch.zeros(count, dtype=torch.int64))
        }
    return Federation.from_clients(parts, classes=2, standardise=None)


def coordinates(model: Params) -> list[float]:
    """body and head."""
    return [*model["body"].tolist(), *model["head"].tolist()]
