"""Terms of an objective: ``(out, params, fixed, batch) -> scalar``, summed after one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.errors import InputError
from fedquilt.core.net import logits_of
from fedquilt.core.params import Params
from fedquilt.core.table import Batch


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over rows, honouring the batch's weights (0 marks padding)."""
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)


def cross_entropy(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Mean over rows of -log softmax(logits)[label]."""
    if batch.weight is None:
        return F.cross_entropy(logits_of(out), batch.y)
    return weighted_mean(F.cross_entropy(logits_of(out), batch.y, reduction="none"), batch.weight)


@dataclass(frozen=True)
class prox:
    """Pull the local model towards the one it started from: mu/2 * |w - w_start|^2, squared.

    Args:
        mu: Strength, >= 0. 0 turns FedProx into FedAvg.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020, eq. (2).
    """

    mu: float

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise InputError(f"prox needs mu >= 0, got {self.mu}.")

    def __call__(self, out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        pulls = [
            (params[n] - w).square().sum() for n, w in fixed["start"].items() if params[n].requires_grad
        ]  # private names have no anchor; buffers are not trained
        total = logits_of(out).new_zeros(())
        for pull in pulls:
            total = total + pull
        return self.mu / 2 * total
