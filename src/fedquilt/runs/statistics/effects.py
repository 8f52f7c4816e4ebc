"""How large a difference is, apart from whether it can be told from chance."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def cohens_d(differences: ArrayLike) -> float:
    """Cohen's d of pairs (d_z): the mean difference over its standard deviation (n - 1); 0 if nobody differs, infinite
    if all differ by the same, NaN for fewer than two.

    Reference: Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return math.nan
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if spread <= 1e-12 * abs(mean):  # what rounding leaves of equal differences
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / spread if mean else 0.0


def rank_biserial(differences: ArrayLike) -> float:
    """The share of Wilcoxon's rank sum in favour minus the share against, in [-1, 1]; pairs that do not differ are left
    out, as in the test; 0 if none differs.

    Reference: Kerby, The simple difference formula, 2014.
    """
    from scipy import stats

    values = np.asarray(differences, dtype=float)
    values = values[values != 0]
    if not len(values):
        return 0.0
    ranks = stats.rankdata(np.abs(values))
    return float((ranks * np.sign(values)).sum() / ranks.sum())


def cliffs_delta(ours: ArrayLike, theirs: ArrayLike) -> float:
    """P(ours > theirs) - P(ours < theirs) over all pairs, in [-1, 1]: how far two groups of clients lie apart when it
    is forgotten who is who; NaN for an empty group.

    Reference: Cliff, Dominance statistics, 1993.
    """
    left, right = np.asarray(ours, dtype=float), np.sort(np.asarray(theirs, dtype=float))
    if not len(left) or not len(right):
        return math.nan
    below = np.searchsorted(right, left, side="left")
    above = len(right) - np.searchsorted(right, left, side="right")
    return float((below - above).sum() / (len(left) * len(right)))
