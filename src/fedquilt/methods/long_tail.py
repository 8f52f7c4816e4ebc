"""FedAvg for long tails: losses that allow for how many rows of each class a client has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.table import Site
from fedquilt.core.train import Job
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.objectives import balanced_softmax, calibrated, class_counts


@dataclass(frozen=True, kw_only=True)
class WithCounts(OnBase):
    """The base, whose loss finds the client's rows per class in ``fixed["counts"]``. They never leave the client."""

    base: FedAvg

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip."""
        (train,) = self.base.exchanges()
        return (train.training(start=self.start),)

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """As the base, with the counts."""
        job = self.base.start(download, client, site, turn)
        return replace(job, fixed={**job.fixed, "counts": class_counts(site.train)})


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


def fedavg_balanced(objective: Objective | Net, **rest: Any) -> WithCounts:
    """FedAvg with balanced softmax by each client's own counts.

    Reference: Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, 2020.
    """
    return WithCounts(base=FedAvg(objective=Objective(net_of(objective), (balanced_softmax,)), **rest))


def fedlc(objective: Objective | Net, tau: float = 1.0, **rest: Any) -> WithCounts:
    """FedAvg with logits calibrated by tau n_c^(-1/4).

    Reference: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022.
    """
    return WithCounts(base=FedAvg(objective=Objective(net_of(objective), (calibrated(tau),)), **rest))
