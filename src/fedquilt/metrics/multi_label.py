"""Metrics of rows that may have several labels, from counts of each label."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedquilt.metrics.ranking import RankSums, auprc_metric, auroc_metric, auroc_of, average_precision_of
from fedquilt.metrics.support import Array, share_variance
from fedquilt.metrics.table import Counts, Metric

KIND = "multi_label"
_PARTS = 4  # of each label: rows that have it, are right to have it called, are called so; and the sums of all labels


def sums(shares: Tensor, y: Tensor) -> Tensor:
    """[4, labels]: how many rows have each label, how many of these are called so, how many are called so; and in the
    last row first the rows that are right in all labels. A label is called where its probability is above a half."""
    has, called = y > 0.5, shares > 0.5
    exact = torch.zeros(y.shape[1], dtype=torch.float64)
    exact[0] = (has == called).all(1).sum()
    return torch.stack([has.sum(0).double(), (has & called).sum(0).double(), called.sum(0).double(), exact])


def _parts(counts: Counts) -> tuple[Array, Array, Array]:
    support, right, called, _ = np.moveaxis(counts.sums[KIND], 1, 0)
    return support, right, called


def _micro(c: Counts) -> Array:
    support, right, called = (part.sum(1) for part in _parts(c))
    both = support + called
    return np.ma.masked_array(2 * right / np.maximum(both, 1), both == 0)


def _macro(c: Counts) -> Array:
    support, right, called = _parts(c)
    both = support + called
    here = both > 0
    means = (2 * right / np.maximum(both, 1) * here).sum(1) / np.maximum(here.sum(1), 1)
    return np.ma.masked_array(means, ~here.any(1))


def _cells(c: Counts) -> tuple[Array, Array]:
    """How many rows times labels are right, and how many there are."""
    support, right, called = _parts(c)
    cells = c.rows * support.shape[1]
    return cells - (support + called - 2 * right).sum(1), cells


def _exact(c: Counts) -> Array:
    found: Array = c.sums[KIND][:, _PARTS - 1, 0]
    return found


def of_rows(y: Tensor, labels: int) -> Tensor:
    """Which labels a row has."""
    return y > 0.5


def odds_of(shares: Tensor) -> Tensor:
    """Log-odds of probabilities."""
    return torch.logit(shares.double())


MICRO_F1 = Metric(
    id="micro_f1",
    name="micro F1",
    of=_micro,
    help="2 right / (labels + calls), over all labels together",
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    pooled=_micro,
)
LABEL_F1 = Metric(
    id="label_f1",
    name="macro F1 over labels",
    heading="macro F1",
    of=_macro,
    help="mean of F1 over the labels that the client has or calls",
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    pooled=_macro,
)
LABEL_ACCURACY = Metric(
    id="label_accuracy",
    name="label accuracy",
    of=lambda c: _cells(c)[0] / _cells(c)[1],
    help="share of yes or no answers that are right: 1 - Hamming loss; rare labels make it high of itself",
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    minor=True,
)
EXACT_MATCH = Metric(
    id="exact_match",
    name="exact match",
    of=lambda c: _exact(c) / c.rows,
    help="share of rows that are right in every label",
    kinds=(KIND,),
    summaries=("pooled", "std", "worst10", "common"),
    variance=lambda c: share_variance(_exact(c), c.rows),
)
METRICS = (MICRO_F1, LABEL_F1, LABEL_ACCURACY, EXACT_MATCH)


def label_auroc() -> Metric:
    """The mean over labels of the area under the ROC curve."""
    ranks = RankSums(auroc_of, odds_of, of_rows)
    return auroc_metric("label_auroc", KIND, ranks, binary=False, name="AUROC over labels")


def label_auprc() -> Metric:
    """The mean over labels of the average precision."""
    ranks = RankSums(average_precision_of, odds_of, of_rows)
    return auprc_metric("label_auprc", KIND, ranks, binary=False, name="AUPRC over labels")
