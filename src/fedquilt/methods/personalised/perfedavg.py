"""Per-FedAvg: a global model that is good after one step on a client's own samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedquilt.core.exchange import Exchange
from fedquilt.core.holders import Fixed
from fedquilt.core.objective import OnLoss
from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.methods.personalised.finetune import FineTune
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.optimizers import SGD


def _split(batch: Batch, count: int) -> list[Batch]:
    """Every count-th row, ``count`` times; a batch too small for that stands in for each part."""
    if len(batch) < 2 * count:
        return [batch] * count
    weight = batch.weight
    return [
        Batch({n: c[k::count] for n, c in batch.columns.items()}, None if weight is None else weight[k::count])
        for k in range(count)
    ]


def _gradient(value: Tensor, params: Params, names: tuple[str, ...], keep: bool = False) -> Params:
    grads = torch.autograd.grad(value, [params[n] for n in names], materialize_grads=True, retain_graph=keep)
    return dict(zip(names, grads, strict=True))


def _moved(params: Params, gradient: Params, by: float) -> Params:
    return {**params, **{n: params[n] + by * g for n, g in gradient.items()}}


@dataclass(frozen=True)
class FirstOrder(OnLoss):
    """f(w - alpha grad f(w; D); D') whose inner gradient counts as a constant: its gradient is grad f(w'; D').

    The Hessian is left out. D and D' are the two halves of the batch.
    """

    alpha: float

    def __call__(self, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        first, second = _split(batch, 2)
        gradient = _gradient(self.loss(params, fixed, first), params, self.trainable)
        return self.loss(_moved(params, gradient, -self.alpha), fixed, second)


@dataclass(frozen=True)
class HessianFree(FirstOrder):
    """As :class:`FirstOrder`, with gradient grad f(w'; D') - alpha d,
    d = (grad f(w + delta v; D'') - grad f(w - delta v; D'')) / (2 delta) and v = grad f(w'; D').

    d stands for the Hessian at w times v. D, D' and D'' are the three thirds of the batch.
    """

    delta: float = 1e-3

    def __call__(self, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        first, second, third = _split(batch, 3)
        gradient = _gradient(self.loss(params, fixed, first), params, self.trainable)
        value = self.loss(_moved(params, gradient, -self.alpha), fixed, second)
        v = _gradient(value, params, self.trainable, keep=True)
        ahead, behind = (
            _gradient(self.loss(_moved(params, v, by), fixed, third), params, self.trainable)
            for by in (self.delta, -self.delta)
        )
        bends = [
            ((ahead[n] - behind[n]) / (2 * self.delta) * (params[n] - params[n].detach())).sum() for n in self.trainable
        ]  # zero, with gradient d
        return value - self.alpha * torch.stack(bends).sum()


@dataclass(frozen=True, init=False)
class PerFedAvg(FineTune):
    """Local steps on F(w) = f(w - alpha grad f(w)); a client uses w - alpha grad f(w), made in a second exchange.

    This is Per-FedAvg (FO), without second derivatives: see :class:`FirstOrder`.

    Args:
        base: How models are averaged; every client counts the same unless ``aggregate`` says otherwise.
        alpha: Learning rate of the step that makes a model a client's own, > 0.
        tune_steps: How many such steps a client makes before it uses the model.

    Reference: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, 2020, algorithm 1.
    """

    alpha: float = 0.01
    tune_steps: int = 1
    defaults: ClassVar = {"aggregate": uniform_mean}

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise InputError(f"Per-FedAvg needs alpha > 0, got {self.alpha}.")

    @property
    def meta(self) -> FirstOrder:
        """F, in one of its approximations."""
        return FirstOrder(self.base.loss, self.alpha)

    @property
    def tuning(self) -> Mapping[str, Any]:
        """Steps of learning rate alpha."""
        return {"steps": self.tune_steps, "optimizer": SGD(self.alpha)}

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train on F, tune on f."""
        train, tune = super().exchanges()
        return train.training(objective=self.meta), tune


@dataclass(frozen=True, init=False)
class PerFedAvgHF(PerFedAvg):
    """Per-FedAvg with second derivatives by differences of gradients: see :class:`HessianFree`.

    Args:
        base: How models are averaged; every client counts the same unless ``aggregate`` says otherwise.
        alpha: Learning rate of the step that makes a model a client's own, > 0.
        tune_steps: How many such steps a client makes before it uses the model.
        delta: How far apart the two gradients are taken, > 0.

    Reference: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, 2020, algorithm 1.
    """

    delta: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delta > 0:
            raise InputError(f"Per-FedAvg (HF) needs delta > 0, got {self.delta}.")

    @property
    def meta(self) -> HessianFree:
        """F with the Hessian's share."""
        return HessianFree(self.base.loss, self.alpha, self.delta)
