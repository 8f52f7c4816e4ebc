"""Realignment: linear heads made from trained ones without training. Pure views: what goes in stays as it is.

References: Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, 2024, GLA-FR. Menon
et al., Long-tail Learning via Logit Adjustment, 2021, for scores adjusted for class shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.errors import InputError

Personal = Literal["readme", "code", "sum"]
WEIGHT, BIAS = "head.weight", "head.bias"  # of a network in two parts


class Head(NamedTuple):
    """A linear classifier: scores are f weight' + bias."""

    weight: Tensor  # [classes, features]
    bias: Tensor  # [classes]

    def __call__(self, features: Tensor) -> Tensor:
        """Class scores."""
        return features @ self.weight.T + self.bias

    def plus(self, other: Head) -> Head:
        """The head whose scores are the sum of both."""
        return Head(self.weight + other.weight, self.bias + other.bias)


class Heads(NamedTuple):
    """What realignment needs of a method: a body, the head that all share, the client's own if it has one, and a fixed
    one if there is such."""

    body: Params
    general: Head
    own: Head | None = None
    fixed: Head | None = None


def with_head(body: Params, head: Head) -> Params:
    """A whole model: body and head."""
    return {**body, WEIGHT: head.weight, BIAS: head.bias}


def lengths(head: Head) -> Tensor:
    """The norm of each class's row: [classes, 1]."""
    norms: Tensor = torch.linalg.vector_norm(head.weight, dim=1, keepdim=True)
    return norms


@dataclass(frozen=True)
class Realign:
    """How heads are realigned.

    Args:
        kappa: Norm that every row of the global head gets, above 0.
        tau: How far: a row is multiplied by (kappa / norm)^tau, so 1 sets all norms to kappa and 0 changes nothing.
        scale_bias: Multiply the bias of a class by the same factor.
        personal: Which head a client gets, with the realigned local head G_c |L_c|: "readme" adds the global head,
            "code" the local one; "sum" is local plus global head, nothing realigned.
        prior_tau: How far scores are adjusted for class shares, where these are known: 1 wholly, 0 not at all.
    """

    kappa: float = 1.7
    tau: float = 1.0
    scale_bias: bool = False
    personal: Personal = "readme"
    prior_tau: float = 1.0

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and math.isfinite(self.kappa)):
            raise InputError(f"kappa, the norm of realigned rows, must be finite and above 0, got {self.kappa}.")
        if not (self.tau >= 0 and math.isfinite(self.tau)):
            raise InputError(f"tau must be 0 (as it is) or more (1: all rows of one norm), got {self.tau}.")
        if self.personal not in ("readme", "code", "sum"):
            raise InputError(f"personal must be 'readme', 'code' or 'sum', got {self.personal!r}.")
        if not (self.prior_tau >= 0 and math.isfinite(self.prior_tau)):
            raise InputError(f"prior_tau must be 0 (scores as they are) or more, got {self.prior_tau}.")

    def whole(self, general: Head) -> Head:
        """The global head, its rows brought to one norm; a row of zeros stays."""
        norms = lengths(general)
        factor = (self.kappa / norms.clamp(min=1e-12)).pow(self.tau).where(norms > 0, 1.0)
        bias = general.bias * factor[:, 0] if self.scale_bias else general.bias
        return Head(general.weight * factor, bias)

    def adjusted(self, head: Head, counts: Tensor) -> Head:
        """The head whose scores are s_c - prior_tau log(n_c / n), n_c of all n rows being of class c.

        A class without rows counts as the rarest one that has some; if none has, the head stays as it is.
        """
        if not bool(counts.any()):
            return head
        rows = counts.double().clamp(min=float(counts[counts > 0].min()))
        shift = self.prior_tau * (rows / counts.sum()).log()
        return Head(head.weight, head.bias - shift.to(head.bias.dtype))

    def views(self, heads: Heads, counts: Tensor | None = None) -> dict[str, Head]:
        """The heads of a model for everybody, by name; the adjusted ones if rows per class are given."""
        trained = {**({} if heads.fixed is None else {"universal": heads.fixed}), "plain": heads.general}
        found = {**trained, "realigned": self.whole(heads.general)}
        if counts is None:
            return found
        shifted = {name: self.adjusted(head, counts) for name, head in trained.items()}
        return {**found, **{"adjusted" if n == "plain" else f"{n}_adjusted": head for n, head in shifted.items()}}

    def own(self, general: Head, own: Head) -> Head:
        """A client's head."""
        if self.personal == "sum":
            return own.plus(general)
        added = general if self.personal == "readme" else own
        return Head(local(general, own).weight + added.weight, own.bias + general.bias)


def local(general: Head, own: Head) -> Head:
    """The local head realigned: the direction of the global rows times the norms of the local ones; the local bias."""
    return Head(general.weight * lengths(own), own.bias)


def masked(scores: Tensor, here: Tensor | None) -> Tensor:
    """Scores of classes that are not ``here`` become -inf, so that they are never the answer, whatever the features.

    It is scores that are masked, never weights: a row of large negative weights gives a large positive score as soon as
    features sum to less than zero. With nothing here, or None, nothing is masked.
    """
    if here is None or not bool(here.any()):
        return scores
    return scores.masked_fill(~here, -math.inf)
