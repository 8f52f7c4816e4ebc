"""Terms of an objective: ``(out, params, fixed, batch) -> scalar``, summed after one forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.holders import Fixed
from fedquilt.core.net import Net, ScoresAndFeatures, logits_of
from fedquilt.core.params import Params, learns
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over rows, honouring the batch's weights (0 marks padding)."""
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)[label] of every row.

    For several clients at once it is put together from two kernels: torch would take its own apart in Python, and
    import much of its compiler for that.
    """
    if torch._C._functorch.is_batchedtensor(logits):
        return -F.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return F.cross_entropy(logits, labels, reduction="none")


def cross_entropy(out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Mean over rows of -log softmax(logits)[label]."""
    logits = logits_of(out)
    if batch.weight is None and not torch._C._functorch.is_batchedtensor(logits):
        return F.cross_entropy(logits, batch.y)
    return weighted_mean(row_losses(logits, batch.y), batch.weight)


def class_weighted(out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Mean over rows of w_y times the cross-entropy, w = ``fixed["weights"]``; not divided by the weights' sum."""
    values = row_losses(logits_of(out), batch.y)
    return weighted_mean(values * fixed["weights"][batch.y], batch.weight)


def class_counts(table: Table) -> Tensor:
    """How many rows of each class a table has, up to its largest label."""
    return torch.bincount(table.columns["y"].index_select(0, table.all_rows()))


def _shifted(out: object, shift: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of logits + shift; classes beyond the shift's end, or shifted by -inf, do not count."""
    logits = logits_of(out)
    whole = F.pad(shift.to(logits.dtype), (0, logits.shape[1] - len(shift)), value=-math.inf)
    return weighted_mean(row_losses(logits + whole, batch.y), batch.weight)


def balanced_softmax(out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Mean over rows of -log( n_y e^s_y / sum_c n_c e^s_c ), with n = ``fixed["counts"]`` rows of each class.

    Reference: Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, 2020, eq. (3).
    """
    return _shifted(out, fixed["counts"].log(), batch)


@dataclass(frozen=True)
class calibrated:
    """Cross-entropy of s_c - tau n_c^(-1/4), n = ``fixed["counts"]``; classes without rows do not count.

    Reference: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022, eq. (8).
    """

    tau: float

    def __post_init__(self) -> None:
        if self.tau < 0:
            raise InputError(f"calibrated needs tau >= 0, got {self.tau}.")

    def __call__(self, out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        counts = fixed["counts"].double()
        shift = torch.where(counts > 0, -self.tau * counts.clamp(min=1).pow(-0.25), -math.inf)
        return _shifted(out, shift, batch)


def tilt(out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """<fixed["tilt"], w>: adds a constant to the gradient of every name in ``fixed["tilt"]``."""
    return sum(((params[n] * t).sum() for n, t in fixed["tilt"].items()), logits_of(out).new_zeros(()))


@dataclass(frozen=True)
class own_loss:
    """A loss as plain PyTorch has it: of scores [rows, classes] and labels [rows], the mean over rows.

    Args:
        function: It, or what makes it when it is called without arguments, such as ``nn.CrossEntropyLoss``.
        makes: Whether that is so.
    """

    function: Callable[..., Any]
    makes: bool = False

    @cached_property
    def _loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        found: Callable[[Tensor, Tensor], Tensor] = self.function() if self.makes else self.function
        return found

    def __call__(self, out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        scores = logits_of(out)
        if batch.weight is None:
            return self._loss(scores, batch.y)
        each = torch.func.vmap(lambda s, y: self._loss(s.unsqueeze(0), y.unsqueeze(0)))
        return weighted_mean(each(scores, batch.y), batch.weight)


@dataclass(frozen=True)
class contrast:
    """Draw features towards those of the global model and away from those of one's own previous model.

    mu * mean over rows of -log( e^(s_g/tau) / (e^(s_g/tau) + e^(s_p/tau)) ), s the cosine of a row's features z with
    the global model's (s_g) and the previous model's (s_p), whose values are ``fixed["global"]`` and
    ``fixed["previous"]``. Needs an objective whose forward pass gives features.

    Reference: Li et al., Model-Contrastive Federated Learning, 2021, eq. (3).
    """

    net: Net
    mu: float
    tau: float

    def __post_init__(self) -> None:
        if self.mu < 0 or self.tau <= 0:
            raise InputError(f"contrast needs mu >= 0 and tau > 0, got {self.mu} and {self.tau}.")

    def __call__(self, out: ScoresAndFeatures, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        with torch.no_grad():
            near, far = (self.net.split(fixed[name], batch).features.flatten(1) for name in ("global", "previous"))
        z = out.features.flatten(1)
        excess = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
        return self.mu * weighted_mean(F.softplus(excess / self.tau), batch.weight)


@dataclass(frozen=True)
class prox:
    """Pull the local model towards the one it started from: mu/2 * |w - w_start|^2, squared.

    Args:
        mu: Strength, >= 0. 0 turns FedProx into FedAvg.
        to: Where the pull leads, ``fixed[to]``: values for some or all names.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks, 2020, eq. (2).
    """

    mu: float
    to: str = "start"

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise InputError(f"prox needs mu >= 0, got {self.mu}.")

    def __call__(self, out: object, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        pulls = [
            (params[n] - w).square().sum() for n, w in fixed[self.to].items() if learns(params[n])
        ]  # private names have no anchor; buffers are not trained
        total = logits_of(out).new_zeros(())
        for pull in pulls:
            total = total + pull
        return self.mu / 2 * total
