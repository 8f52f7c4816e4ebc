"""Clients whose loss is |w - c|^2 / 2 for a point c of their own: methods with several models, worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn, tensor

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.data import Federation


class Point(nn.Module):
    """A point w in the plane (its coordinates are parts: 'body' and 'head'), whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.ParameterList([torch.zeros(1)]), nn.ParameterList([torch.zeros(1)])

    def forward(self, x: Tensor) -> Tensor:
        """w for every row."""
        return torch.cat([self.body[0], self.head[0]]).expand(len(x), 2)


def half_square(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Mean over rows of |w - c|^2 / 2."""
    return (out - batch["c"]).square().sum(1).mean() / 2


LOSS = Objective(Net(Point), (half_square,))


def at(first: float, second: float) -> Params:
    """The model at a point."""
    return {"body.0": tensor([float(first)]), "head.0": tensor([float(second)])}


def place(model: Params) -> list[float]:
    """The point of a model."""
    return [float(model["body.0"]), float(model["head.0"])]


def federation(points: Mapping[Any, Sequence[float]], rows: Mapping[Any, int] | None = None) -> Federation:
    """Client i's rows are all c_i; one row each unless told otherwise."""
    owner = [c for c in points for _ in range((rows or {}).get(c, 1))]
    c = tensor([list(points[o]) for o in owner], dtype=torch.float32)
    columns = {"x": torch.zeros(len(owner), 1), "y": torch.zeros(len(owner), dtype=torch.int64), "c": c}
    return Federation.from_rows(columns, {k: {"train": [i for i, o in enumerate(owner) if o == k]} for k in points})
