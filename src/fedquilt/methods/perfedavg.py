"""Per-FedAvg: a global model that is good after one step on a client's own rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange
from fedquilt.core.net import Net
from fedquilt.core.objective import Loss, Objective, OnLoss
from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.finetune import FineTune
from fedquilt.methods.on_base import OnBase
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


def _slope(value: Tensor, params: Params, names: tuple[str, ...], keep: bool = False) -> Params:
    grads = torch.autograd.grad(value, [params[n] for n in names], materialize_grads=True, retain_graph=keep)
    return dict(zip(names, grads, strict=True))


def _moved(params: Params, slope: Params, by: float) -> Params:
    return {**params, **{n: params[n] + by * g for n, g in slope.items()}}


@dataclass(frozen=True)
class FirstOrder(OnLoss):
    """f(w - alpha grad f(w; D); D') whose inner slope counts as a constant: its slope is grad f(w'; D').

    The Hessian is left out. D and D' are the two halves of the batch.
    """

    alpha: float

    def __call__(self, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        first, second = _split(batch, 2)
        slope = _slope(self.loss(params, fixed, first), params, self.trainable)
        return self.loss(_moved(params, slope, -self.alpha), fixed, second)


@dataclass(frozen=True)
class HessianFree(FirstOrder):
    """As :class:`FirstOrder`, with slope grad f(w'; D') - alpha d,
    d = (grad f(w + delta v; D'') - grad f(w - delta v; D'')) / (2 delta) and v = grad f(w'; D').

    d stands for the Hessian at w times v. D, D' and D'' are the three thirds of the batch.
    """

    delta: float = 1e-3

    def __call__(self, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        first, second, third = _split(batch, 3)
        slope = _slope(self.loss(params, fixed, first), params, self.trainable)
        value = self.loss(_moved(params, slope, -self.alpha), fixed, second)
        v = _slope(value, params, self.trainable, keep=True)
        ahead, behind = (
            _slope(self.loss(_moved(params, v, by), fixed, third), params, self.trainable)
            for by in (self.delta, -self.delta)
        )
        bends = [
            ((ahead[n] - behind[n]) / (2 * self.delta) * (params[n] - params[n].detach())).sum() for n in self.trainable
        ]  # zero, with slope d
        return value - self.alpha * torch.stack(bends).sum()


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(OnBase):
    """Local steps on F(w) = f(w - alpha grad f(w)); a client uses w - alpha grad f(w), made in a second trip.

    Args:
        base: How models are averaged, and tuned with learning rate alpha.
        meta: F, in one of its approximations.

    Reference: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, 2020, algorithm 1.
    """

    base: FineTune
    meta: Loss

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train on F, tune on f."""
        train, tune = self.base.exchanges()
        return train.training(objective=self.meta), tune


def _tuned(objective: Objective | Net, alpha: float, tune_steps: int, rest: Mapping[str, Any]) -> FineTune:
    if not alpha > 0:
        raise InputError(f"Per-FedAvg needs alpha > 0, got {alpha}.")
    base = FedAvg(objective=objective, **{"aggregate": uniform_mean, **rest})
    return FineTune(base=base, steps=tune_steps, optimizer=SGD(alpha))


def perfedavg(objective: Objective | Net, alpha: float = 0.01, tune_steps: int = 1, **rest: Any) -> PerFedAvg:
    """Per-FedAvg (FO): without second derivatives."""
    base = _tuned(objective, alpha, tune_steps, rest)
    return PerFedAvg(base=base, meta=FirstOrder(base.base.loss, alpha))


def perfedavg_hf(
    objective: Objective | Net, alpha: float = 0.01, delta: float = 1e-3, tune_steps: int = 1, **rest: Any
) -> PerFedAvg:
    """Per-FedAvg (HF): second derivatives by differences of slopes."""
    if not delta > 0:
        raise InputError(f"Per-FedAvg (HF) needs delta > 0, got {delta}.")
    base = _tuned(objective, alpha, tune_steps, rest)
    return PerFedAvg(base=base, meta=HessianFree(base.base.loss, alpha, delta))
