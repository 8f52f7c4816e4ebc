"""FedProx: FedAvg with a proximal term towards the model each client started from."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.objective import Objective
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.objectives import prox


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose local loss gains mu/2 |w - w_start|^2.

    Args:
        mu: Strength of the proximal term, >= 0; 0 is FedAvg.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedProx(Net.of(models.MLP, features=64, classes=10), mu=0.1)
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        prox(self.mu)  # checks it

    @property
    def loss(self) -> Objective:
        """With the pull."""
        return super().loss.plus(prox(self.mu))
