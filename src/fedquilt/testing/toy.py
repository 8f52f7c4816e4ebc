"""A small federation, a network for it, and a method that learns on it in two rounds."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedquilt.core.net import Net
from fedquilt.data import Dirichlet, Federation
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD

WORK: dict[str, Any] = {"optimizer": SGD(0.1, momentum=0.9), "batch_size": 16, "epochs": 2}


@cache
def digits(clients: int = 4, alpha: float = 1.0) -> Federation:
    """The 8x8 digits of scikit-learn over a few clients with different labels."""
    return Federation.from_source("digits", partition=Dirichlet(alpha), clients=clients, seed=0)


def network() -> Net:
    """An MLP for the digits: 64 inputs, 16 features, 10 classes; its last layer is called ``head``."""
    return Net(make("mlp", (1, 8, 8), 10, hidden=(16,)))


def fedavg(**settings: Any) -> FedAvg:
    """FedAvg with settings under which it learns the digits in two rounds."""
    return FedAvg(**{"objective": network(), **WORK, **settings})
