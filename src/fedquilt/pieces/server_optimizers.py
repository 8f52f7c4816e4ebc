"""Server optimisers: the mean change of the clients as the (negative) gradient of the server's own descent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedquilt.core.params import Params, add, scale, zeros_like, zip_with
from fedquilt.errors import InputError

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
