"""How sure a score is, given how many rows it was taken on: of each client, and of means over clients.

A client's test may hold two rows of a class. Its recall of that class is then 0, 1/2 or 1, and a macro average gives it
the weight of a class with a thousand rows. The variances here know the counts; none is 0 because a class with one row
happened to be right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Z = 1.959963984540054  # of 95 %
_HALF, _WHOLE = Z * Z / 2, Z * Z  # rows that are added, half of them right: Agresti and Coull's interval


def wilson(right: Array, rows: Array) -> tuple[Array, Array]:
    """The ends of Wilson's 95 % interval of the share that is right.

    Reference: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    n = np.maximum(np.asarray(rows, dtype=np.float64), 1)
    share = np.asarray(right) / n
    middle = (share + _HALF / n) / (1 + _WHOLE / n)
    half = Z / (1 + _WHOLE / n) * np.sqrt(share * (1 - share) / n + _WHOLE / (4 * n * n))
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


def share_variance(right: Array, rows: Array) -> Array:
    """p(1 - p) / n of a share of n rows, with p drawn to a half where n is small: (right + z²/2) / (n + z²).

    Reference: Agresti and Coull, Approximate is better than "exact" for interval estimation of binomial proportions,
    1998; but around the share itself, so without the rows they add to n.
    """
    share = _drawn_in(right, rows)
    variance: Array = share * (1 - share) / np.maximum(rows, 1)
    return variance


def _drawn_in(right: Array, rows: Array) -> Array:
    share: Array = (np.asarray(right) + _HALF) / (np.asarray(rows) + _WHOLE)
    return share


def balanced_variance(correct: Array, support: Array) -> Array:
    """Of each client's mean recall over the K classes that it has: the sum of the classes' variances over K²; counts
    are [clients, classes]."""
    here = support > 0
    kinds = np.maximum(here.sum(1), 1)
    variance: Array = (share_variance(correct, support) * here).sum(1) / kinds**2
    return variance


def macro_f1_variance(correct: Array, support: Array, called: Array) -> Array:
    """Of each client's macro F1 over the K classes that it has or calls, by the delta method.

    F = 2a / (2a + b) with a rows that are right and b that were missed or wrongly called. One more right row moves F by
    2b / (2a + b)², one more wrong row by -2a / (2a + b)²; counts are taken as independent, and a share a / (a + b) of
    few rows is drawn to a half. A wrong row moves two classes, whose pair is not known here; (x + y)² <= 2x² + 2y²
    bounds it, so wrong rows count twice.
    """
    rows = support + called - correct
    right = rows * _drawn_in(correct, rows)
    wrong = rows - right
    square = np.maximum((2 * right + wrong) ** 2, 1e-12)
    each = right * (2 * wrong / square) ** 2 + 2 * wrong * (2 * right / square) ** 2
    here = (support + called) > 0
    variance: Array = (each * here).sum(1) / np.maximum(here.sum(1), 1) ** 2
    return variance


def half_of_mean(variances: Array, weights: Array | None = None) -> float:
    """Half of the 95 % interval of a mean over clients whose rows are drawn apart; the clients, and what each of them
    weighs, are fixed."""
    w = np.ones(len(variances)) if weights is None else weights
    return Z * float(np.sqrt(np.sum(w**2 * variances))) / max(float(np.sum(w)), 1)


def rarest(support: Array) -> Array:
    """How many rows each client has of the class that it has fewest of."""
    fewest: Array = np.where(support > 0, support, np.iinfo(np.int64).max).min(1)
    return fewest
