"""FedETF: everybody learns features for one fixed classifier whose class vectors are as far apart as can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.exchange import Context
from fedquilt.core.holders import HasPrivate, HasShared
from fedquilt.core.objective import Objective
from fedquilt.core.table import Site
from fedquilt.core.train import Job
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.losses import rebuilt, two_parts, with_counts
from fedquilt.pieces.etf import simplex
from fedquilt.pieces.objectives import balanced_softmax


class SimplexHead(nn.Module):
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
        self.head = SimplexHead(head.in_features, head.out_features, scale)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.features(x))
        return scores


@dataclass(frozen=True, kw_only=True)
class FedETF(FedAvg):
    """FedAvg with a simplex classifier and balanced softmax: -log( n_y e^(b v_y z) / sum_c n_c e^(b v_c z) ).

    z is the normalised projection of the features, v_c the fixed class vectors, b the temperature, which is trained and
    averaged like any weight; n_c are the client's samples of class c.

    Args:
        scale: The temperature b at first, > 0.

    Reference: Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning, 2023.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedETF(Net.of(models.MLP, features=64, classes=10))
    """

    needs_classes = "gives each class a fixed vector"

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0:
            raise InputError(f"FedETF needs scale > 0, got {self.scale}.")
        self.loss  # noqa: B018 - checks the network

    @cached_property
    def loss(self) -> Objective:
        """Balanced softmax of the network with the simplex."""
        return Objective(rebuilt(self.objective, WithSimplex, self.scale), (balanced_softmax,))

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """As FedAvg, with the counts."""
        return with_counts(super().start(download, client, site, context), site)
