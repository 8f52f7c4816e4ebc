"""Local-only training: every client on its own, nothing travels."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.params import Parts, everything, nothing
from fedquilt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class LocalOnly(FedAvg):
    """FedAvg in which every name is private: the lower baseline of every comparison.

    Each client starts from its own random model and continues training it in every round.

    Reference: none; it is no federated method.

    Example:
        >>> from fedquilt import Net, models
        >>> method = LocalOnly(Net.of(models.MLP, features=64, classes=10))
    """

    parts: Parts = Parts(shared=nothing, private=everything)  # noqa: RUF009 - frozen, so it can be shared
