"""How well scores rank rows: the areas under the ROC and the precision-recall curve.

Of a client they are exact. Of all clients' rows together they come from two histograms of the scores of each class, of
its own rows and of the others, in bins of log-odds that are the same for everybody: rows of one bin count as tied, so
the value is known up to the pairs that share a bin (:func:`auroc_between`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedquilt.metrics.own import OfRows
from fedquilt.metrics.support import Array, Z
from fedquilt.metrics.table import Counts, Metric

BINS = 512  # of the log-odds of a class
REACH = 16.0  # log-odds beyond this are in the first or last bin
HEAD = 4  # numbers of a class before its histograms: value, whether it has one, its rows, the others


def log_odds(scores: Tensor) -> Tensor:
    """log p / (1 - p) of each class, p the softmax of scores: [rows, classes]."""
    wide = scores.double()
    if wide.shape[1] < 2:
        return wide
    others = torch.stack(
        [torch.cat([wide[:, :k], wide[:, k + 1 :]], 1).logsumexp(1) for k in range(wide.shape[1])], dim=1
    )
    return wide - others


def of_labels(labels: Tensor, classes: int) -> Tensor:
    """Which class a row has, [rows, classes]."""
    return torch.arange(classes) == labels[:, None]


def auroc_of(scores: Array, mine: Array) -> float:
    """P(a row of the class scores higher than another row) + P(they tie) / 2; both kinds of rows must be there.

    Reference: Hanley and McNeil, The meaning and use of the area under a ROC curve, 1982.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[place]  # of ties their mean
    own = int(mine.sum())
    return float((ranks[mine].sum() - own * (own + 1) / 2) / (own * (len(mine) - own)))


def average_precision_of(scores: Array, mine: Array) -> float:
    """Sum over thresholds of (recall - recall before) * precision; rows of the class must be there."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    own = np.cumsum(mine[order])[ends]
    recall = own / own[-1]
    return float((np.diff(recall, prepend=0.0) * own / (ends + 1)).sum())


@dataclass(frozen=True)
class RankSums(OfRows):
    """Per class: the exact value and 1 (or zeros, where it has none), how many rows it has and has not, and both
    histograms: [classes, 4 + 2 BINS].

    Args:
        of: The value of one class, from scores and which rows are of it.
        odds: From outputs the log-odds of each class.
        mine: From labels and the number of classes which rows are of it.
    """

    of: Callable[[Array, Array], float]
    odds: Callable[[Tensor], Tensor] = log_odds
    mine: Callable[[Tensor, int], Tensor] = of_labels

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The sums of a client."""
        odds, own = self.odds(scores), self.mine(labels, scores.shape[1])
        place = ((odds + REACH) * (BINS / (2 * REACH))).floor().clamp(0, BINS - 1).long()
        found = torch.zeros(scores.shape[1], HEAD + 2 * BINS, dtype=torch.float64)
        for k in range(scores.shape[1]):
            here = own[:, k]
            many = int(here.sum())
            found[k, 2], found[k, 3] = many, len(here) - many
            found[k, HEAD:] = torch.cat([torch.bincount(place[w, k], minlength=BINS) for w in (here, ~here)])
            if 0 < many < len(here):
                found[k, :2] = torch.tensor([self.of(odds[:, k].numpy(), here.numpy()), 1.0], dtype=torch.float64)
        return found


def auroc_between(own: Array, others: Array) -> tuple[float, float]:
    """The least and the largest area that rows in these bins can have: pairs in one bin are all wrong, or all right."""
    below = np.concatenate([[0.0], np.cumsum(others)[:-1]])
    pairs = float(own.sum() * others.sum())
    sure, tied = float((own * below).sum()), float((own * others).sum())
    return sure / pairs, (sure + tied) / pairs


def average_precision_between(own: Array, others: Array) -> tuple[float, float]:
    """The least and the largest average precision that rows in these bins can have: the others of a bin come first, or
    last."""
    ends = []
    for first in (True, False):
        before_own = before_all = total = 0.0
        for mine, rest in zip(own[::-1], others[::-1], strict=True):
            ahead = rest if first else 0.0
            ranks = np.arange(1, int(mine) + 1)
            total += float(((before_own + ranks) / (before_all + ahead + ranks)).sum())
            before_own, before_all = before_own + mine, before_all + mine + rest
        ends.append(total / float(own.sum()))
    return ends[0], ends[1]


def _classes(held: Array, binary: bool) -> Array:
    """The classes that count: of two the second, whose curve says all."""
    return held[:, 1:] if binary and held.shape[1] == 2 else held


def _exact(id: str, binary: bool) -> Callable[[Counts], Array]:
    def of(counts: Counts) -> Array:
        held = _classes(counts.sums[id], binary)
        there = held[:, :, 1] > 0
        means = np.where(there, held[:, :, 0], 0).sum(1) / np.maximum(there.sum(1), 1)
        return np.ma.masked_array(means, ~there.any(1))

    return of


def _binned(id: str, binary: bool, between: Callable[[Array, Array], tuple[float, float]]) -> Callable[[Counts], Array]:
    """The middle of what bins leave open, a mean over classes that have both kinds of rows."""

    def of(counts: Counts) -> Array:
        held = _classes(counts.sums[id], binary)
        found = np.full(len(held), np.nan)
        for client, classes in enumerate(held):
            values = [
                np.mean(between(c[HEAD : HEAD + BINS], c[HEAD + BINS :])) for c in classes if c[2] > 0 and c[3] > 0
            ]
            if values:
                found[client] = np.mean(values)
        return np.ma.masked_invalid(found)

    return of


def _auroc_variance(id: str, binary: bool) -> Callable[[Counts], Array]:
    """Hanley and McNeil's of each class, with the area drawn to a half where rows are few; classes as if apart."""

    def of(counts: Counts) -> Array:
        held = _classes(counts.sums[id], binary)
        area, own, others = held[:, :, 0], np.maximum(held[:, :, 2], 1), np.maximum(held[:, :, 3], 1)
        there, few = held[:, :, 1] > 0, np.minimum(own, others)
        a = (area * few + Z * Z / 2) / (few + Z * Z)
        first, second = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
        each = (a * (1 - a) + (own - 1) * first + (others - 1) * second) / (own * others)
        found: Array = np.where(there, each, 0).sum(1) / np.maximum(there.sum(1), 1) ** 2
        return found

    return of


def auroc_metric(id: str, kind: str, statistic: RankSums, binary: bool, name: str = "AUROC") -> Metric:
    """The area under the ROC curve for scores of a kind."""
    return Metric(
        id=id,
        name=name,
        of=_exact(id, binary),
        help="area under the ROC curve, of several classes the mean of each against the rest; a client that has rows "
        "of one kind only has none. Pooled: of all rows together, from bins",
        kinds=(kind,),
        summaries=("pooled", "std", "worst10"),
        pooled=_binned(id, binary, auroc_between),
        variance=_auroc_variance(id, binary),
        statistic=statistic,
    )


def auprc_metric(id: str, kind: str, statistic: RankSums, binary: bool, name: str = "AUPRC") -> Metric:
    """The area under the precision-recall curve (average precision) for scores of a kind."""
    return Metric(
        id=id,
        name=name,
        of=_exact(id, binary),
        help="average precision, of several classes the mean of each against the rest; the share of the class is what "
        "chance gives. Pooled: of all rows together, from bins",
        kinds=(kind,),
        summaries=("pooled", "std", "worst10"),
        pooled=_binned(id, binary, average_precision_between),
        statistic=statistic,
    )


def auroc() -> Metric:
    """The area under the ROC curve; of two classes that of the second, of more the mean of each against the rest."""
    return auroc_metric("auroc", "classification", RankSums(auroc_of), binary=True)


def auprc() -> Metric:
    """The area under the precision-recall curve, likewise."""
    return auprc_metric("auprc", "classification", RankSums(average_precision_of), binary=True)
