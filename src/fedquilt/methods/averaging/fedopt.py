"""FedOpt: the server treats the clients' mean change as a gradient (FedAvgM, FedAdam, FedAdagrad, FedYogi)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import HasDelta
from fedquilt.core.params import Params, add, scale, sub, zeros_like, zip_with
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.records.record import record

Kept = tuple[Params, ...]
SecondMoment = Callable[[Tensor, Tensor], Tensor]


class ServerOptimizer(Protocol):
    """The shape of every server optimiser."""

    def init(self, weights: Params) -> Kept:
        """Fresh memory."""
        ...

    def step(self, change: Params, memory: Kept) -> tuple[Params, Kept]:
        """(the clients' mean change, memory) -> (how the weights move, new memory)."""
        ...


@dataclass(frozen=True)
class Momentum:
    """v <- beta v + change;  w <- w + lr v.

    Reference: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019 (FedAvgM).
    """

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr, beta=self.beta)

    def init(self, weights: Params) -> Kept:
        """No velocity."""
        return (zeros_like(weights),)

    def step(self, change: Params, memory: Kept) -> tuple[Params, Kept]:
        """One step."""
        velocity = add(scale(memory[0], self.beta), change)
        return scale(velocity, self.lr), (velocity,)


def summed(v: Tensor, square: Tensor) -> Tensor:
    """Adagrad's second moment: v + change^2."""
    return v + square


@dataclass(frozen=True)
class averaged:
    """Adam's second moment: beta v + (1 - beta) change^2."""

    beta: float

    def __post_init__(self) -> None:
        _check(1.0, beta2=self.beta)

    def __call__(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta * v + (1 - self.beta) * square


@dataclass(frozen=True)
class signed:
    """Yogi's second moment: v - (1 - beta) change^2 sign(v - change^2)."""

    beta: float

    def __post_init__(self) -> None:
        _check(1.0, beta2=self.beta)

    def __call__(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta) * square * torch.sign(v - square)


@dataclass(frozen=True)
class Adaptive:
    """m <- beta m + (1 - beta) change;  v <- second(v, change^2);  w <- w + lr m / (sqrt(v) + tau).

    v starts at tau^2 and there is no bias correction, as in the paper.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.
    """

    second: SecondMoment
    lr: float = 0.1
    beta: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.lr, beta1=self.beta)
        if not self.tau > 0:
            raise InputError(f"tau must be > 0, got {self.tau}.")

    def init(self, weights: Params) -> Kept:
        """m = 0, v = tau^2."""
        return zeros_like(weights), {n: torch.full_like(t, self.tau**2) for n, t in weights.items()}

    def step(self, change: Params, memory: Kept) -> tuple[Params, Kept]:
        """One step."""
        m = zip_with(lambda old, d: self.beta * old + (1 - self.beta) * d, memory[0], change)
        v = zip_with(lambda old, d: self.second(old, d.square()), memory[1], change)
        return zip_with(lambda a, b: self.lr * a / (b.sqrt() + self.tau), m, v), (m, v)


def _check(lr: float, **betas: float) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"The server's lr must be a positive number, got {lr}.")
    for name, beta in betas.items():
        if not 0 <= beta < 1:
            raise InputError(f"{name} must be in [0, 1), got {beta}.")


@record(name="fedquilt.methods.fedopt:Steered")
class Steered:
    """The shared part, and the server optimiser's memory of its trained weights."""

    shared: Params
    memory: Kept


@dataclass(frozen=True)
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
class FedAvgM(OnBase):
    """Server momentum: v <- beta v + d;  x <- x + server_lr v, where d is the clients' mean change.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate; with 1 and beta = 0 this is FedAvg.
        beta: Momentum, in [0, 1).

    Reference: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAvgM(Net.of(models.MLP, features=64, classes=10), beta=0.5)
    """

    base: FedAvg
    server_lr: float = 1.0
    beta: float = 0.9

    @cached_property
    def delegate(self) -> FedOpt:
        """Momentum."""
        return FedOpt(self.base, Momentum(self.server_lr, self.beta))


@dataclass(frozen=True, init=False)
class FedAdam(OnBase):
    """m <- beta1 m + (1 - beta1) d;  v <- beta2 v + (1 - beta2) d^2;  x <- x + server_lr m / (sqrt(v) + tau).

    d is the clients' mean change; see :class:`Adaptive` for how m and v begin.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        beta2: How slowly the second moment v follows, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAdam(Net.of(models.MLP, features=64, classes=10), server_lr=0.01)
    """

    base: FedAvg
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @cached_property
    def delegate(self) -> FedOpt:
        """Adam."""
        return FedOpt(self.base, Adaptive(averaged(self.beta2), self.server_lr, self.beta1, self.tau))


@dataclass(frozen=True, init=False)
class FedYogi(OnBase):
    """v <- v - (1 - beta2) d^2 sign(v - d^2); the rest as :class:`FedAdam`.

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        beta2: How slowly the second moment v follows, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedYogi(Net.of(models.MLP, features=64, classes=10), server_lr=0.01)
    """

    base: FedAvg
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @cached_property
    def delegate(self) -> FedOpt:
        """Yogi."""
        return FedOpt(self.base, Adaptive(signed(self.beta2), self.server_lr, self.beta1, self.tau))


@dataclass(frozen=True, init=False)
class FedAdagrad(OnBase):
    """v <- v + d^2; the rest as :class:`FedAdam`, by default without momentum (as in the paper's experiments).

    Args:
        base: How clients train and how their changes are merged into d.
        server_lr: The server's learning rate.
        beta1: Momentum, in [0, 1).
        tau: Added to the square root of v, > 0: the larger, the less adaptive.

    Reference: Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedAdagrad(Net.of(models.MLP, features=64, classes=10), server_lr=0.01)
    """

    base: FedAvg
    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    @cached_property
    def delegate(self) -> FedOpt:
        """Adagrad."""
        return FedOpt(self.base, Adaptive(summed, self.server_lr, self.beta1, self.tau))
