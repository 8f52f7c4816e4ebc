"""FedBN: every client keeps its own BatchNorm layers."""

from __future__ import annotations

from typing import Any

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import at_home
from fedquilt.methods.fedavg import FedAvg, net_of


def fedbn(objective: Objective | Net, **rest: Any) -> FedAvg:
    """FedAvg in which weights, biases and running statistics of all BatchNorm layers are private.

    Reference: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021.
    """
    net = net_of(objective)
    if not net.norms:
        raise InputError("FedBN keeps BatchNorm layers private, but this network has none. Choose a model with them.")
    return FedAvg(objective=objective, parts=at_home(net.under(*net.norms)), **rest)
