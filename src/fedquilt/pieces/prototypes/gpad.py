"""GPAD: features are held near their prototype, the more firmly the surer it is which one that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.errors import InputError

TINY = 1e-8


class Gates(NamedTuple):
    """Of each row: cosine to the nearest prototype, entropy of the soft assignment in [0, 1], threshold, gate."""

    similarity: Tensor
    entropy: Tensor
    tau: Tensor
    gate: Tensor


@dataclass(frozen=True)
class GPAD:
    """Gated prototype-anchored distillation.

    For features z [B, D] and a bank V [M, D], both at length 1, s = z V^T and s* = max_j s_j:

        p = softmax(s / soft_assign_temp),  H = -sum p ln p / ln M  (0 for M = 1),  tau = base_tau + lambda_entropy H,
        gate = sigmoid((s* - tau) / temp_gate),  dist = sqrt(max(2 (1 - s*), 0) + 1e-8),  loss = mean(gate dist).

    Args:
        base_tau: The similarity at which the gate is half open, in [0, 1].
        temp_gate: How soft the gate is, in (0, 1].
        lambda_entropy: How much higher the threshold is for rows that no prototype claims clearly, in [0, 0.5].
        soft_assign_temp: Temperature of the assignment whose entropy counts, > 0.
        hard_gate: Also shut the gate where s* <= tau.
        distance: 'l2' as above, or 'sq': 2 (1 - s*).
        gate_grad: Whether gradient flows through the gate. It then pushes rows just above tau away from their
            prototype, because gate * dist grows there with the similarity; off by default.
        anchored_only: Average over the rows with s* >= tau instead of all.
    """

    base_tau: float = 0.5
    temp_gate: float = 0.1
    lambda_entropy: float = 0.1
    soft_assign_temp: float = 0.1
    hard_gate: bool = False
    distance: Literal["l2", "sq"] = "l2"
    gate_grad: bool = False
    anchored_only: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.base_tau <= 1 and 0 < self.temp_gate <= 1):
            raise InputError(f"base_tau must be in [0, 1], temp_gate in (0, 1]: {self.base_tau}, {self.temp_gate}.")
        if not 0 <= self.lambda_entropy <= 0.5 or self.soft_assign_temp <= 0:
            given = f"{self.lambda_entropy}, {self.soft_assign_temp}"
            raise InputError(f"lambda_entropy must be in [0, 0.5], soft_assign_temp above 0: {given}.")
        if self.distance not in ("l2", "sq"):
            raise InputError(f"distance must be 'l2' or 'sq', got {self.distance!r}.")

    def gates(self, z: Tensor, bank: Tensor) -> Gates:
        """What the loss is made of; the bank must have rows."""
        s = F.normalize(z.float(), dim=1) @ F.normalize(bank.float(), dim=1).T
        best = s.max(1).values
        with torch.set_grad_enabled(self.gate_grad and torch.is_grad_enabled()):
            shares = F.softmax(s / self.soft_assign_temp, dim=1)
            many = len(bank) > 1
            bits = -(shares * shares.clamp(min=TINY).log()).sum(1)
            entropy = (bits / math.log(len(bank))).clamp(0, 1) if many else torch.zeros_like(best)
            tau = self.base_tau + self.lambda_entropy * entropy
            gate = torch.sigmoid((best - tau) / self.temp_gate)
            if self.hard_gate:
                gate = gate * (best > tau)
        return Gates(best, entropy, tau, gate)

    def __call__(self, z: Tensor, bank: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss; for an empty bank or batch a zero that still hangs on ``z``."""
        if not len(bank) or not len(z):
            return z.float().sum() * 0.0
        found = self.gates(z, bank)
        apart = (2 * (1 - found.similarity)).clamp(min=0)
        pulls = found.gate * (apart if self.distance == "sq" else (apart + TINY).sqrt())
        weight = torch.ones_like(pulls) if weight is None else weight
        if self.anchored_only:
            weight = weight * (found.similarity >= found.tau)
        return (pulls * weight).sum() / weight.sum().clamp(min=1e-12)
