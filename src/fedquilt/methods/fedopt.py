"""FedOpt: the server treats the clients' mean change as a gradient (FedAvgM, FedAdam, FedAdagrad, FedYogi)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Exchange, Reply, Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, add, sub
from fedquilt.core.record import record
from fedquilt.core.seed import Seed
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.server_optimizers import Adaptive, Kept, Momentum, ServerOptimizer, averaged, signed, summed


@record
class Steered:
    """The shared part, and the server optimiser's memory of its trained weights."""

    shared: Params
    memory: Kept


@dataclass(frozen=True, kw_only=True)
class FedOpt(OnBase):
    """The base, with x <- x + server step(d) where the base would do x <- x + d; buffers still take d.

    Args:
        base: How clients train and how their changes are merged into d.
        server: The server's optimiser.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithms 1 and 2.
    """

    base: FedAvg
    server: ServerOptimizer

    def init_server(self, seed: Seed) -> Steered:
        """The base's model, and fresh memory."""
        shared = self.base.init_server(seed).shared
        return Steered(shared, self.server.init(self.base.trained(shared)))

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip with another ending."""
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state: Steered, replies: Iterable[Reply[Any]], turn: Turn) -> Steered:
        """Merge the changes, then let the server's optimiser make its step along the result."""
        merged = self.base.aggregate(state.shared, replies, turn)
        if merged is state.shared:
            return state
        before = self.base.trained(state.shared)
        move, memory = self.server.step(sub(self.base.trained(merged), before), state.memory)
        return Steered({**merged, **add(before, move)}, memory)


def fedavgm(objective: Objective | Net, server_lr: float = 1.0, beta: float = 0.9, **rest: Any) -> FedOpt:
    """Server momentum: v <- beta v + d;  x <- x + server_lr v.

    Args:
        objective: The network, or an objective.
        server_lr: The server's learning rate; with 1 and beta = 0 this is FedAvg.
        beta: Momentum, in [0, 1).
        rest: As for :class:`FedAvg`.

    Reference: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.
    """
    return FedOpt(base=FedAvg(objective=objective, **rest), server=Momentum(server_lr, beta))


def fedadam(
    objective: Objective | Net, server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3,
    **rest: Any,
) -> FedOpt:  # fmt: skip
    """v <- beta2 v + (1 - beta2) d^2; see :class:`fedquilt.pieces.server_optimizers.Adaptive` for the rest."""
    return FedOpt(base=FedAvg(objective=objective, **rest), server=Adaptive(averaged(beta2), server_lr, beta1, tau))


def fedyogi(
    objective: Objective | Net, server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3,
    **rest: Any,
) -> FedOpt:  # fmt: skip
    """v <- v - (1 - beta2) d^2 sign(v - d^2); the rest as FedAdam."""
    return FedOpt(base=FedAvg(objective=objective, **rest), server=Adaptive(signed(beta2), server_lr, beta1, tau))


def fedadagrad(
    objective: Objective | Net, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, **rest: Any
) -> FedOpt:
    """v <- v + d^2; the rest as FedAdam, by default without momentum (as in the paper's experiments)."""
    return FedOpt(base=FedAvg(objective=objective, **rest), server=Adaptive(summed, server_lr, beta1, tau))
