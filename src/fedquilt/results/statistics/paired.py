"""Is one method better than another for the same clients? Paired differences and their test.

How large a difference is, apart from whether it can be told from chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from fedquilt.core.plain import Floats, Row
from fedquilt.core.table import ClientId
from fedquilt.metrics.table import main
from fedquilt.results.statistics.spread import client_means


def cohens_d(differences: Sequence[float] | Floats) -> float:
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


def rank_biserial(differences: Sequence[float] | Floats) -> float:
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


Accuracies = Sequence[Mapping[ClientId, float]]  # of one method: for each seed, each client's
LEAST = 0.05


@dataclass(frozen=True)
class Paired:
    """A method against another one, client by client.

    Args:
        difference: Mean over clients of the difference of their accuracies, each a mean over seeds.
        half: Half of its 95 % t-interval over clients.
        p: Of Wilcoxon's signed-rank test over clients, two-sided, after Holm's correction for the number of methods
            that were compared; 1 if no client differs. Without two clients to compare (one common test set), that of
            the paired t-test over seeds.
        seeds_better: In how many seeds the mean over clients is better.
        seeds: How many there are.
        seeds_t: Of the paired t-test over seeds, corrected likewise; NaN for one seed or equal differences. It asks
            another question, whether other seeds would give a difference in the mean, and of few seeds cannot tell.
        cohens_d, rank_biserial: Sizes of the effect over clients, paired.
        cliffs_delta: The same of the two groups, unpaired.
    """

    difference: float
    half: float
    p: float
    seeds_better: int
    seeds: int
    seeds_t: float = math.nan
    cohens_d: float = math.nan
    rank_biserial: float = math.nan
    cliffs_delta: float = math.nan

    @property
    def significant(self) -> bool:
        """The one verdict that tables and reports give: p is below 5 %, and every one of at least two seeds agrees on
        who is better."""
        return self.p < LEAST and self.seeds > 1 and self.seeds_better in (0, self.seeds)


def against(first: Accuracies, other: Accuracies) -> Paired:
    """``other`` minus ``first``, for clients that were scored with both in a seed; p without correction."""
    from scipy import stats  # takes a second to import

    pairs = [{c: (a[c], b[c]) for c in a if c in b} for a, b in zip(first, other, strict=True)]
    theirs, ours = _means(pairs, itemgetter(0)), _means(pairs, itemgetter(1))
    each = np.array(_means(pairs, lambda pair: pair[1] - pair[0]))
    seeds = np.array([np.mean([b - a for a, b in found.values()]) for found in pairs if found])
    better = int((seeds > 0 if main().higher_is_better else seeds < 0).sum())
    if len(each) < 2:
        difference, p = float(each.mean()) if len(each) else math.nan, _t_test(seeds)
        return Paired(difference, math.nan, p, better, len(first), p)
    half = float(stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / math.sqrt(len(each)))
    return Paired(
        float(each.mean()),
        half,
        wilcoxon(each),
        better,
        len(first),
        _t_test(seeds),
        cohens_d(each),
        rank_biserial(each),
        cliffs_delta(ours, theirs),
    )


def _means(
    pairs: Sequence[Mapping[ClientId, tuple[float, float]]], of: Callable[[tuple[float, float]], float]
) -> list[float]:
    """Each client's mean over seeds of a number of its pairs."""
    return list(client_means([{c: of(pair) for c, pair in found.items()} for found in pairs]).values())


def wilcoxon(differences: Sequence[float] | Floats) -> float:
    """p of the signed-rank test, two-sided; 1 if nothing differs, NaN for fewer than two."""
    from scipy import stats

    if len(differences) < 2:
        return math.nan
    return float(stats.wilcoxon(differences).pvalue) if np.any(differences) else 1.0


def _t_test(differences: Sequence[float] | Floats) -> float:
    from scipy import stats

    if len(differences) < 2 or np.allclose(differences, differences[0]):
        return math.nan
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm_adjusted(found: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number; NaN stays, and does not count.

    Reference: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    known = sorted((name for name in found if not math.isnan(found[name])), key=lambda name: found[name])
    adjusted, least = dict.fromkeys(found, math.nan), 0.0
    for i, name in enumerate(known):
        least = max(least, min(1.0, (len(known) - i) * found[name]))
        adjusted[name] = least
    return adjusted


def holm(found: Mapping[str, Paired]) -> dict[str, Paired]:
    """The same with every kind of p corrected for their number."""
    p = holm_adjusted({n: pair.p for n, pair in found.items()})
    seeds_t = holm_adjusted({n: pair.seeds_t for n, pair in found.items()})
    return {n: replace(pair, p=p[n], seeds_t=seeds_t[n]) for n, pair in found.items()}


def told(found: Mapping[str, Paired]) -> dict[str, Row]:
    """Corrected for their number, as plain values."""
    return {name: {**asdict(pair), "significant": pair.significant} for name, pair in holm(found).items()}


def versus(methods: Mapping[str, Accuracies]) -> dict[str, Row]:
    """Every method but the first against the first, as plain values."""
    baseline, *others = methods
    return told({name: against(methods[baseline], methods[name]) for name in others})
