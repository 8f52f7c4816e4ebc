"""FedBN: every client keeps its own BatchNorm layers."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.fedper import staying


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """FedAvg in which weights, biases and running statistics of all BatchNorm layers are private.

    Reference: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedBN(Net.of(models.ResNet, depth=10, width=8, norm="batch"))
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        net = self.net
        if not net.norms:
            raise InputError(
                "FedBN keeps BatchNorm layers private, but this network has none. Choose a model with them."
            )
        object.__setattr__(self, "parts", staying(self.parts, net.under(*net.norms), net.names))
