"""Linear heads that stay with their clients: who may have them, heads as matrices, features of a client's samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.net import Net
from fedquilt.core.params import Params, at_home, either, under
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.head_search import FeatureRows

WEIGHT, BIAS = "head.weight", "head.bias"
BLOCK = 32  # rows at a time: what fits a cache is fastest
is_head = under("head")


def with_own_heads(base: Any, method: str) -> Any:
    """The same base with a private head; refused where ``method`` could not work on it."""
    net = getattr(base, "net", None)
    if not isinstance(net, Net) or not net.has_linear_head or WEIGHT not in net.trainable:
        raise InputError(
            f"{method} needs a network that computes head(features(x)), where features and head are its submodules and "
            "head is a torch.nn.Linear that is trained. The image and vector models of fedquilt.models are built so; "
            "give your own module these two parts."
        )
    trips = base.exchanges()
    if len(trips) != 1:
        raise InputError(
            f"{method} needs a base whose rounds have one exchange, but {type(base).__name__} has "
            f"{', '.join(e.name for e in trips)}. Take FedAvg, FedProx, FedRep, SCAFFOLD or a server optimiser."
        )
    return _rehomed(base, method)


def _rehomed(base: Any, method: str) -> Any:
    if isinstance(base, FedAvg):
        private = base.parts.private
        return base if private(WEIGHT) else replace(base, parts=at_home(either(private, is_head)))
    plain = all(getattr(type(base), n, None) is getattr(OnBase, n) for n in ("personal_model", "predict"))
    if not plain or not isinstance(getattr(base, "base", None), OnBase | FedAvg):
        raise InputError(
            f"{method} cannot stand on {type(base).__name__}: its clients do not use the head that they train in its "
            "exchange. Take FedAvg, FedProx, FedRep, SCAFFOLD or a server optimiser."
        )
    return replace(base, base=_rehomed(base.base, method))


def as_matrix(head: Params) -> Tensor:
    """[W | b], or W if there is no bias."""
    return torch.cat([head[WEIGHT], head[BIAS][:, None]], 1) if BIAS in head else head[WEIGHT]


def as_params(matrix: Tensor, like: Params) -> Params:
    """The named tensors of a matrix."""
    if BIAS not in like:
        return {WEIGHT: matrix.contiguous()}
    found = {WEIGHT: matrix[:, :-1].contiguous(), BIAS: matrix[:, -1].contiguous()}
    return {n: found[n] for n in like}


def rows_of(net: Net, model: Params, table: Table | None) -> FeatureRows:
    """The feature vectors of all rows in evaluation mode, with a 1 at the end if the head has a bias."""
    if table is None or not len(table):
        width = as_matrix(model).shape[1]
        return FeatureRows(model[WEIGHT].new_zeros(0, width), torch.zeros(0, dtype=torch.long))
    mine = net.own(model)  # in the layout the network runs with, which halves the time
    with torch.no_grad():
        blocks = [(net.split(mine, batch).features, batch.y) for batch in table.blocks(BLOCK)]
    z, y = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return FeatureRows(torch.cat([z, z.new_ones(len(z), 1)], 1) if BIAS in model else z, y)
