"""What probabilities are worth, and scores of classes that look at chance or weigh errors; for rows of one class each.

``auroc``, ``auprc``, ``brier`` and ``ece`` need more than counts of classes, so what clients tell of their scores gets
larger; they are computed where a recipe asks for them: ``metrics = ["brier"]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.metrics.support import Array
from fedquilt.metrics.table import Counts, Metric

BINS = 15  # of confidence


def brier_sums(scores: Tensor, labels: Tensor) -> Tensor:
    """Sums over rows of b and b^2, b the squared distance of the probabilities from the label's 0 and 1."""
    shares = scores.double().softmax(1)
    each = (shares - (torch.arange(scores.shape[1]) == labels[:, None]).double()).square().sum(1)
    return torch.stack([each.sum(), each.square().sum()])


def confidence_sums(scores: Tensor, labels: Tensor) -> Tensor:
    """Per bin of the highest probability: its sum, and how many rows are right; the bin of p is that of
    ceil(15 p)."""
    sure, answer = scores.double().softmax(1).max(1)
    place = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    parts = (sure, (answer == labels).double())
    return torch.stack([torch.zeros(BINS, dtype=torch.float64).index_add(0, place, v) for v in parts])


def brier() -> Metric:
    """The Brier score: mean over rows of the sum over classes of (probability - 1 or 0)^2, from 0 to 2.

    Reference: Brier, Verification of forecasts expressed in terms of probability, 1950.
    """

    def variance(c: Counts) -> Array:
        mean, square = (c.sums["brier"][:, i] / c.rows for i in (0, 1))
        return np.ma.masked_array(np.maximum(square - mean**2, 0) / np.maximum(c.rows - 1, 1), c.rows < 2)

    return Metric(
        id="brier",
        name="Brier score",
        heading="Brier",
        of=lambda c: c.sums["brier"][:, 0] / c.rows,
        help="mean over rows of the squared distance of probabilities from the label",
        higher_is_better=False,
        share=False,
        summaries=("pooled", "std", "worst10"),
        variance=variance,
        statistic=brier_sums,
    )


def ece() -> Metric:
    """The expected calibration error: sum over 15 bins of confidence of |right - confidence| / rows. Few rows make it
    large of themselves, so clients' values are above the pooled one.

    Reference: Guo et al., On Calibration of Modern Neural Networks, 2017, eq. (3).
    """

    def of(c: Counts) -> Array:
        sure, right = c.sums["ece"][:, 0], c.sums["ece"][:, 1]
        found: Array = np.abs(sure - right).sum(1) / c.rows
        return found

    return Metric(
        id="ece",
        name="calibration error",
        heading="ECE",
        of=of,
        help="expected calibration error in 15 bins; few rows make it large of themselves",
        higher_is_better=False,
        summaries=("pooled", "std", "worst10"),
        pooled=of,
        statistic=confidence_sums,
    )


def kappa() -> Metric:
    """Cohen's kappa: (accuracy - chance) / (1 - chance), chance the accuracy of answers that come as often but at
    random.

    Reference: Cohen, A coefficient of agreement for nominal scales, 1960.
    """

    def of(c: Counts) -> Array:
        chance = (c.support * c.called).sum(1) / c.rows**2
        found = (c.correct.sum(1) / c.rows - chance) / np.where(chance < 1, 1 - chance, 1)
        return np.ma.masked_array(found, chance >= 1)

    return Metric(
        id="kappa",
        name="Cohen's kappa",
        heading="kappa",
        of=of,
        help="agreement beyond chance; none for a client whose rows and answers are all of one class",
        share=False,
        summaries=("pooled", "std", "worst10"),
        pooled=of,
    )


@dataclass(frozen=True)
class _FBeta:
    beta: float

    def __call__(self, c: Counts) -> Array:
        """Mean over the classes present or called."""
        square = self.beta**2
        below = square * c.support + c.called  # (1 + b^2) right + b^2 missed + wrongly called
        here = below > 0
        each = (1 + square) * c.correct / np.where(here, below, 1)
        found: Array = (each * here).sum(1) / np.maximum(here.sum(1), 1)
        return found


def f_beta(beta: float = 2.0) -> Metric:
    """Macro F-beta: mean over classes of (1 + b^2) right / (b^2 rows + calls).

    Args:
        beta: How many times as much recall counts as precision.
    """
    if not beta > 0:
        raise InputError(f"beta should be more than 0, got {beta!r}.")
    of = _FBeta(beta)
    name = f"macro F{beta:g}"
    return Metric(
        id="f_beta",
        name=name,
        of=of,
        help=f"mean over classes of F-beta: recall counts {beta:g} times as much as precision",
        summaries=("pooled", "std", "worst10"),
        pooled=of,
    )
