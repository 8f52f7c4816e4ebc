"""What PODFCSSV keeps and sends."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.train import Memory
from fedquilt.pieces.prototypes.bank import Arrivals, Bank
from fedquilt.pieces.prototypes.centre import Centre
from fedquilt.records.declared import Between
from fedquilt.records.record import record


@record(name="fedquilt.methods.podfcssv_records:Anchors")
class Anchors:
    """The server's state: the adapters, the bank, the mean of features, and what became of the last prototypes.

    ``arrived`` counts all prototypes that ever came.
    """

    shared: Params
    bank: Bank
    centre: Centre
    arrivals: Arrivals
    arrived: int = 0


@record(name="fedquilt.methods.podfcssv_records:Keeper")
class Keeper:
    """A client's state, kept from round to round and from task to task.

    Its own adapters, if they are not shared ({} otherwise); its prototypes, as they are sent; rows near none of them;
    the optimiser's memory; and of the last client update the mean losses (reconstruction, anchoring) and how many rows
    moved a prototype.
    """

    private: Params
    prototypes: Tensor
    novel: Tensor
    memory: Memory | None = None
    losses: tuple[float, float] = (0.0, 0.0)
    followed: int = 0


@record(name="fedquilt.methods.podfcssv_records:Anchored")
class Anchored:
    """What a client is sent: adapters, the rows of the bank [M, D], and the mean to subtract [D]."""

    shared: Params
    bank: Tensor
    centre: Tensor


@record(name="fedquilt.methods.podfcssv_records:Learned")
class AdapterUpload:
    """What a client answers: how the adapters changed, prototypes [K, D], the rows behind each [K], and how many rows
    it trained on. With centring, prototypes are means of features as they are; otherwise they have length 1."""

    delta: Params
    prototypes: Tensor
    counts: Annotated[Tensor, torch.int64, Between(1, 10**9)]
    rows: int


@record(name="fedquilt.methods.podfcssv_records:Seen")
class PrototypeUpload:
    """What a client answers when it only looked at its data: as :class:`AdapterUpload`, without adapters."""

    prototypes: Tensor
    counts: Annotated[Tensor, torch.int64, Between(1, 10**9)]
