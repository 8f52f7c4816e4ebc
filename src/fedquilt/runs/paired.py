"""Is one method better than another for the same clients? Paired differences and their test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId

Accuracies = Sequence[Mapping[ClientId, float]]  # of one method: for each seed, each client's
LEAST = 0.05


@dataclass(frozen=True)
class Paired:
    """A method against another one, client by client.

    Args:
        difference: Mean over clients of the difference of their accuracies, each a mean over seeds.
        half: Half of its 95 % t-interval over clients.
        p: Of Wilcoxon's signed-rank test over clients, two-sided, after Holm's correction for the number of methods
            that were compared; 1 if no client differs, NaN for fewer than two clients.
        seeds_better: In how many seeds the mean over clients is higher.
        seeds: How many there are.
    """

    difference: float
    half: float
    p: float
    seeds_better: int
    seeds: int

    @property
    def significant(self) -> bool:
        """p is below 5 %, and every one of at least two seeds agrees on who is better."""
        return self.p < LEAST and self.seeds > 1 and self.seeds_better in (0, self.seeds)


def against(first: Accuracies, other: Accuracies) -> Paired:
    """``other`` minus ``first``, for clients that were scored with both in a seed; p without correction."""
    from scipy import stats  # takes a second to import

    held: dict[ClientId, list[float]] = {}
    better = 0
    for a, b in zip(first, other, strict=True):
        found = {c: b[c] - a[c] for c in a if c in b}
        better += bool(found) and float(np.mean(list(found.values()))) > 0
        for client, value in found.items():
            held.setdefault(client, []).append(value)
    each = np.array([np.mean(values) for values in held.values()])
    if len(each) < 2:
        return Paired(float(each.mean()) if len(each) else math.nan, math.nan, math.nan, better, len(first))
    p = float(stats.wilcoxon(each).pvalue) if np.any(each) else 1.0
    half = float(stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / math.sqrt(len(each)))
    return Paired(float(each.mean()), half, p, better, len(first))


def holm(found: Mapping[str, Paired]) -> dict[str, Paired]:
    """The same with p corrected for their number.

    Reference: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    known = sorted((name for name in found if not math.isnan(found[name].p)), key=lambda name: found[name].p)
    adjusted, least = {}, 0.0
    for i, name in enumerate(known):
        least = max(least, min(1.0, (len(known) - i) * found[name].p))
        adjusted[name] = least
    return {name: replace(pair, p=adjusted.get(name, math.nan)) for name, pair in found.items()}


def versus(methods: Mapping[str, Accuracies]) -> dict[str, dict[str, Any]]:
    """Every method but the first against the first, as plain values."""
    baseline, *others = methods
    pairs = holm({name: against(methods[baseline], methods[name]) for name in others})
    return {name: {**asdict(pair), "significant": pair.significant} for name, pair in pairs.items()}


def accuracies_at(rows: Sequence[Mapping[str, Any]], round: int | None) -> dict[ClientId, float]:
    """Each client's test accuracy with the model it would use after a round; from metrics/clients.jsonl."""
    return {
        r["client"]: r["accuracy"]
        for r in rows
        if r["model"] == "deployed" and r["split"] == "test" and r["round"] == round
    }
