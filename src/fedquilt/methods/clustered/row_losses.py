"""How well models fit a client's samples, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective, scores_and_features
from fedquilt.core.params import Params
from fedquilt.core.table import Batch, Table

ROWS_PER_BLOCK = 256


def mean_loss(loss: Objective, params: Params, table: Table) -> float:
    """The mean loss per row in evaluation mode. Every row counts the same, also one in a small last block."""
    still, total = replace(loss, forward=_still_split if loss.forward is scores_and_features else _still), 0.0
    with torch.no_grad():
        for block in table.blocks(ROWS_PER_BLOCK):
            total += float(still(params, {"start": params}, block)) * len(block)
    return total / max(len(table), 1)


def _still(net: Net, params: Params, batch: Batch) -> Any:
    return net(params, batch)


def _still_split(net: Net, params: Params, batch: Batch) -> Any:
    return net.split(params, batch)


def losses_of(net: Net, out: Tensor, y: Tensor) -> Tensor:
    """The loss of each row: of the network's task, or cross-entropy."""
    return F.cross_entropy(out, y, reduction="none") if net.task is None else net.task.losses(out, y)


def total_loss(net: Net, out: Tensor, y: Tensor) -> Tensor:
    """Their sum."""
    return F.cross_entropy(out, y, reduction="sum") if net.task is None else net.task.losses(out, y).sum()


def best_shares(net: Net, predict: Callable[[Params, Batch], Tensor], models: Sequence[Params], table: Table) -> Tensor:
    """On which share of the rows each model has the lowest loss, the lowest number on a tie; float64 [k]."""
    counts = torch.zeros(len(models), dtype=torch.float64)
    for block in table.blocks(ROWS_PER_BLOCK):
        with torch.no_grad():
            losses = [losses_of(net, predict(m, block), block.y) for m in models]
        counts += torch.bincount(torch.stack(losses).argmin(0), minlength=len(counts))
    return counts / counts.sum()
