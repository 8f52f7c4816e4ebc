"""FedETF: everybody learns features for one fixed classifier whose class vectors are as far apart as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tail import WithCounts, rebuilt, two_parts
from fedquilt.pieces.etf import simplex
from fedquilt.pieces.objectives import balanced_softmax


class Fixed(nn.Module):
    """scale * V normalise(P f): P is a learned projection, scale a learned temperature, V the fixed simplex."""

    vectors: Tensor

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.projection = nn.Linear(features, classes)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.register_buffer("vectors", simplex(classes), persistent=False)  # the same everywhere: never sent

    def forward(self, f: Tensor) -> Tensor:
        """Class scores."""
        return self.scale * F.normalize(self.projection(f)) @ self.vectors.T


class WithSimplex(nn.Module):
    """A network in two parts, features and a linear head, its head replaced."""

    def __init__(self, build: Callable[[], nn.Module], scale: float) -> None:
        super().__init__()
        self.features, head = two_parts(build)
        self.head = Fixed(head.in_features, head.out_features, scale)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.features(x))
        return scores


def fedetf(objective: Objective | Net, scale: float = 1.0, **rest: Any) -> WithCounts:
    """FedAvg with a simplex classifier and balanced softmax: -log( n_y e^(b v_y z) / sum_c n_c e^(b v_c z) ).

    z is the normalised projection of the features, v_c the fixed class vectors, b the temperature, which is trained and
    averaged like any weight; n_c are the client's rows of class c.

    Args:
        objective: The network, in two parts.
        scale: The temperature b at first, > 0.
        rest: As for :class:`FedAvg`.

    Reference: Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning, 2023.
    """
    if not scale > 0:
        raise InputError(f"FedETF needs scale > 0, got {scale}.")
    loss = Objective(rebuilt(objective, WithSimplex, scale), (balanced_softmax,))
    return WithCounts(base=FedAvg(objective=loss, **rest))
