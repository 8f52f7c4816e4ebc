"""FedOpt: the server treats the clients' mean change as a gradient (FedAvgM, FedAdam, FedAdagrad, FedYogi)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Params, add, sub
from fedquilt.core.seed import Seed
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.server_optimizers import Adaptive, Kept, Momentum, ServerOptimizer, averaged, signed, summed
from fedquilt.records.record import record


@record(name="fedquilt.methods.fedopt:Steered")
class Steered:
    """The shared part, and the server optimiser's memory of its trained weights."""

    shared: Params
    memory: Kept


@dataclass(frozen=True, init=False)
class FedOpt(OnBase, ABC):
    """The base, with x <- x + server step(d) where the base would do x <- x + d; buffers still take d.

    Args:
        base: How clients train and how their changes are merged into d.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithms 1 and 2.
    """

    base: FedAvg

    def __post_init__(self) -> None:
        self.server  # noqa: B018 - checks the options

    @property
    @abstractmethod
    def server(self) -> ServerOptimizer:
        """The server's optimiser."""

    def init_server(self, seed: Seed) -> Steered:
        """The base's model, and fresh memory."""
        shared = self.base.init_server(seed).shared
        return Steered(shared, self.server.init(self.base.trained(shared)))

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with another ending."""
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state: Steered, replies: Iterable[Reply[HasDelta]], context: Context) -> Steered:
        """Merge the changes, then let the server's optimiser make its step along the result."""
        merged = self.base.aggregate(state.shared, replies, context)
        if merged is state.shared:
            return state
        before = self.base.trained(state.shared)
        move, memory = self.server.step(sub(self.base.trained(merged), before), state.memory)
        return Steered({**merged, **add(before, move)}, memory)


@dataclass(frozen=True, init=False)
class FedAvgM(FedOpt):
    """Server momentum: v <- beta v + d;  x <- x + server_lr v, where d is the clients' mean change.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate; with 1 and beta = 0 this is FedAvg.
        beta: Momentum, in [0, 1).

    Reference: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.
    """

    server_lr: float = 1.0
    beta: float = 0.9

    @property
    def server(self) -> Momentum:
        """Momentum."""
        return Momentum(self.server_lr, self.beta)


@dataclass(frozen=True, init=False)
class FedAdam(FedOpt):
    """m <- beta1 m + (1 - beta1) d;  v <- beta2 v + (1 - beta2) d^2;  x <- x + server_lr m / (sqrt(v) + tau).

    d is the clients' mean change; see :class:`fedquilt.pieces.server_optimizers.Adaptive` for how m and v begin.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        beta2: How slowly the second moment v follows, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @property
    def server(self) -> Adaptive:
        """Adam."""
        return Adaptive(averaged(self.beta2), self.server_lr, self.beta1, self.tau)


@dataclass(frozen=True, init=False)
class FedYogi(FedOpt):
    """v <- v - (1 - beta2) d^2 sign(v - d^2); the rest as :class:`FedAdam`.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        beta2: How slowly the second moment v follows, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @property
    def server(self) -> Adaptive:
        """Yogi."""
        return Adaptive(signed(self.beta2), self.server_lr, self.beta1, self.tau)


@dataclass(frozen=True, init=False)
class FedAdagrad(FedOpt):
    """v <- v + d^2; the rest as :class:`FedAdam`, by default without momentum (as in the paper's experiments).

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.
    """

    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    @property
    def server(self) -> Adaptive:
        """Adagrad."""
        return Adaptive(summed, self.server_lr, self.beta1, self.tau)
