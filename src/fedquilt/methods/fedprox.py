"""FedProx: FedAvg with a pull towards the model each client started from."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.objectives import cross_entropy, prox


def fedprox(objective: Objective | Net, mu: float = 0.01, **rest: Any) -> FedAvg:
    """FedAvg whose local loss gains mu/2 |w - w_start|^2.

    Args:
        objective: The network, or an objective to extend.
        mu: Strength of the pull, >= 0; 0 is FedAvg.
        rest: As for :class:`FedAvg`.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020.
    """
    loss = Objective(objective, (cross_entropy,)) if isinstance(objective, Net) else objective
    return FedAvg(objective=loss.plus(prox(mu)), **rest)
