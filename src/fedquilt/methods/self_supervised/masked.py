"""Learning without labels by guessing hidden patches: the loss, the features, and methods that only do that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site, Table

BLOCK = 256  # rows that are embedded at a time


def all_rows(site: Site) -> Table:
    """Every training sample of a client, labelled or not; labels are not seen."""
    return site.inputs


def guessed(net: Net, params: Params, batch: Batch) -> Any:
    """One training pass, with masks drawn from torch's generator (which engines seed): what the network returns, so
    the ``loss`` of every image and its ``embedding`` from the same pass."""
    noise = torch.rand(len(batch.x), patches_of(net), device=batch.x.device)
    return net.ask(params, "forward", batch.x, noise, train=True)


def reconstruction(net: Net, params: Params, batch: Batch, seed: Seed) -> Tensor:
    """The loss of each image [B] under masks that follow from the seed, without dropout."""
    noise = torch.rand(len(batch.x), patches_of(net), generator=seed.torch())
    loss: Tensor = net.ask(params, "forward", batch.x, noise).loss
    return loss


def features(net: Net, params: Params, table: Table, masks: Seed | None) -> Tensor:
    """The features [n, D] of all rows, without gradient; ``masks`` hides patches as in training, None hides none."""
    return torch.cat(list(_blocks(net, params, table, masks)))


@torch.no_grad()
def _blocks(net: Net, params: Params, table: Table, masks: Seed | None) -> Iterator[Tensor]:
    draw = None if masks is None else masks.torch()
    for block in table.blocks(BLOCK):
        noise = None if draw is None else torch.rand(len(block.x), patches_of(net), generator=draw)
        yield net.ask(params, "embed", block.x, noise)


def patches_of(net: Net) -> int:
    """How many patches an image has."""
    return int(net.trait("patches"))


def width_of(net: Net) -> int:
    """How many numbers a feature vector has."""
    return int(net.trait("width"))
