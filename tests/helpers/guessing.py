"""A masked autoencoder and a stream small enough for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedquilt.core.net import Net
from fedquilt.data import Dirichlet, Federation
from fedquilt.data.streams.streams import Stream
from fedquilt.methods.self_supervised.podfcssv import PODFCSSV
from fedquilt.models.registry import net
from fedquilt.pieces.optimizers import AdamW

SIZES = {"patch": 2, "width": 16, "depth": 2, "heads": 2, "decoder_width": 8, "decoder_heads": 2, "bottleneck": 4}
RECIPE: dict[str, Any] = {
    "name": "guess",
    "rounds": 4,
    "data": {"source": "digits", "clients": 3, "limit": 400, "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "stream": {"kind": "by_class", "groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], "rounds_per_task": 2},
    "model": {"kind": "mae", **SIZES},
    "method": {"kind": "podfcssv", "center": True, "lambda_proto": 0.1},
    "train": {"batch_size": 32, "optimizer": {"kind": "adamw", "lr": 0.001}},
    "output": {"folder": "runs"},
}


GUESSING = ("podfcssv", "fedmae", "mae_alone", "mae_pooled")


def fitting(recipe: dict[str, Any], kind: str) -> dict[str, Any]:
    """The settings with a network that this method can train."""
    return {**recipe, "model": RECIPE["model"]} if kind in GUESSING else recipe


def autoencoder(**options: Any) -> Net:
    """For 8 x 8 digits."""
    return net("mae", (1, 8, 8), 10, **{**SIZES, **options})


@cache
def tasks(clients: int = 3) -> Stream:
    """The digits in two tasks."""
    whole = Federation.from_source("digits", partition=Dirichlet(1.0), clients=clients, seed=0)
    return Stream.by_class(whole, ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), rounds_per_task=2)


def method(**options: Any) -> PODFCSSV:
    """PODFCSSV for those."""
    given = {"lambda_proto": 0.1, "center": True, "optimizer": AdamW(1e-3), "batch_size": 64, **options}
    return PODFCSSV(autoencoder(), **given)
