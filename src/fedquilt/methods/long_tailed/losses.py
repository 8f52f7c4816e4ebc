"""FedAvg for long tails: losses that allow for how many rows of each class a client has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from fedquilt.core.exchange import Context
from fedquilt.core.holders import HasPrivate, HasShared
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.table import Site
from fedquilt.core.train import Job
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.pieces.objectives import balanced_softmax, calibrated, class_counts


def with_counts(job: Job, site: Site) -> Job:
    """The same work, whose loss finds the client's samples per class in ``fixed["counts"]``."""
    return replace(job, fixed={**job.fixed, "counts": class_counts(site.train)})


@dataclass(frozen=True, kw_only=True)
class FedAvgBalanced(FedAvg):
    """FedAvg with balanced softmax: -log( n_y e^s_y / sum_c n_c e^s_c ), n_c the client's own samples of class c.

    These counts never leave the client.

    Reference: Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, 2020.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAvgBalanced(Net.of(models.MLP, features=64, classes=10))
    """

    needs_classes = "shifts the scores of classes by their rows"

    @property
    def loss(self) -> Objective:
        """Balanced softmax."""
        return Objective(net_of(self.objective), (balanced_softmax,))

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """As FedAvg, with the counts."""
        return with_counts(super().start(download, client, site, context), site)


@dataclass(frozen=True, kw_only=True)
class FedLC(FedAvg):
    """FedAvg with calibrated logits: cross-entropy of s_c - tau n_c^(-1/4), n_c the client's own samples of class c.

    These counts never leave the client.

    Args:
        tau: Strength of the calibration, >= 0; 0 is FedAvg.

    Reference: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedLC(Net.of(models.MLP, features=64, classes=10), tau=0.5)
    """

    needs_classes = "shifts the scores of classes by their rows"

    tau: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        calibrated(self.tau)  # checks it

    @property
    def loss(self) -> Objective:
        """Of calibrated logits."""
        return Objective(net_of(self.objective), (calibrated(self.tau),))

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """As FedAvg, with the counts."""
        return with_counts(super().start(download, client, site, context), site)


def rebuilt(objective: Objective | Net, module: Callable[..., nn.Module], *settings: Any) -> Net:
    """The network as ``module(build, *settings)``, made around what the network was built by."""
    net = net_of(objective)
    if isinstance(net.build, nn.Module):
        raise InputError(f"{module.__name__} changes the network's head: give Net its class, not a ready module.")
    return replace(net, build=partial(module, net.build, *settings))


def two_parts(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Linear]:
    """Features and linear head of a new module, which must have both."""
    made: Any = build()
    if not isinstance(getattr(made, "features", None), nn.Module) or not isinstance(made.head, nn.Linear):
        raise InputError(f"This method needs a module with features and a linear head, got {type(made).__name__}.")
    return made.features, made.head
