"""Optimisers for local work: frozen settings, one in-place step. Equal to ``torch.optim`` (tested)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.errors import InputError

Memory = tuple[list[Tensor], ...]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent.

    Args:
        lr: Learning rate, > 0.
        momentum: 0 for none.
        nesterov: Look ahead along the momentum; needs momentum.
        weight_decay: Adds weight_decay * w to the gradient.

    Example:
        >>> from fedquilt import FedAvg
        >>> from fedquilt.testing import network
        >>> FedAvg(network(), optimizer=SGD(0.1, momentum=0.9)).optimizer.lr
        0.1
    """

    lr: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), got {self.momentum}.")
        if self.nesterov and self.momentum == 0:
            raise InputError("nesterov needs momentum > 0.")

    def init(self, weights: list[Tensor]) -> Memory:
        """One velocity per weight, if there is momentum."""
        return ([torch.zeros_like(w) for w in weights],) if self.momentum else ()

    def step(self, weights: list[Tensor], grads: list[Tensor], memory: Memory, lr: float, count: int) -> None:
        """v <- m v + g;  w <- w - lr v   (v replaced by g + m v with nesterov)."""
        gradients: tuple[Tensor, ...] | list[Tensor] = grads
        if self.weight_decay:
            gradients = torch._foreach_add(grads, weights, alpha=self.weight_decay)
        if self.momentum:
            (velocity,) = memory
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = torch._foreach_add(gradients, velocity, alpha=self.momentum) if self.nesterov else velocity
        torch._foreach_add_(weights, gradients, alpha=-lr)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015): ``weight_decay`` adds to the gradient.

    Args:
        lr: Learning rate, > 0.
        betas: Decay of the two running means.
        eps: Added to the denominator.
        weight_decay: Adds weight_decay * w to the gradient.

    Example:
        >>> Adam(1e-3).betas
        (0.9, 0.999)
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not all(0 <= b < 1 for b in self.betas):
            raise InputError(f"betas must be in [0, 1), got {self.betas}.")
        if self.eps < 0:
            raise InputError(f"eps must be >= 0, got {self.eps}.")

    def init(self, weights: list[Tensor]) -> Memory:
        """Two running means per weight."""
        return [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]

    def step(self, weights: list[Tensor], grads: list[Tensor], memory: Memory, lr: float, count: int) -> None:
        """m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2;  w <- w - lr m_hat / (sqrt(v_hat) + eps)."""
        gradients: tuple[Tensor, ...] | list[Tensor] = grads
        if self.weight_decay:
            gradients = torch._foreach_add(grads, weights, alpha=self.weight_decay)
        self._descend(weights, gradients, memory, lr, count)

    def _descend(
        self, weights: list[Tensor], gradients: tuple[Tensor, ...] | list[Tensor], memory: Memory, lr: float, count: int
    ) -> None:
        (first, second), (b1, b2) = memory, self.betas
        torch._foreach_lerp_(first, gradients, 1 - b1)
        torch._foreach_mul_(second, b2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - b2)
        spread = torch._foreach_sqrt(second)
        torch._foreach_div_(spread, math.sqrt(1 - b2**count))
        torch._foreach_add_(spread, self.eps)
        torch._foreach_addcdiv_(weights, first, spread, -lr / (1 - b1**count))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w <- (1 - lr * weight_decay) w first.

    Example:
        >>> AdamW(1e-3).weight_decay
        0.01
    """

    weight_decay: float = 0.01

    def step(self, weights: list[Tensor], grads: list[Tensor], memory: Memory, lr: float, count: int) -> None:
        """Shrink, then step as Adam."""
        if self.weight_decay:
            torch._foreach_mul_(weights, 1 - lr * self.weight_decay)
        self._descend(weights, grads, memory, lr, count)


def check_optimizer(optimizer: object) -> None:
    """Raise unless it is an optimiser as methods take it; those of PyTorch hold the weights of one module."""
    if not isinstance(optimizer, type | torch.optim.Optimizer) and hasattr(optimizer, "step"):
        return
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    of_torch = issubclass(kind, torch.optim.Optimizer)
    got = f"torch.optim.{kind.__name__}" if of_torch else repr(optimizer)
    raise InputError(
        f"optimizer must be an optimiser such as SGD(0.1) or Adam(0.001) (from fedquilt import SGD, Adam, AdamW; the "
        f"number is the learning rate), got {got}."
        + (" PyTorch's own belong into a training loop of your own (client_update)." if of_torch else "")
    )


def _check(lr: float, weight_decay: float) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"lr must be a positive number, got {lr}.")
    if weight_decay < 0:
        raise InputError(f"weight_decay must be >= 0, got {weight_decay}.")
