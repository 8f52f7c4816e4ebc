"""What belongs beside a mean accuracy in a table, and what may be said of the method at its top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import main
from fedquilt.results.statistics.intervals import bootstrap
from fedquilt.results.statistics.paired import Accuracies, against, told
from fedquilt.results.statistics.spread import over_clients
from fedquilt.results.statistics.targets import Rows, area_under, best_test_round, costs_to


def beside(
    histories: Sequence[Rows], scores: Accuracies, target: float, joules: Sequence[Mapping[int, float] | None] = ()
) -> Row:
    """Columns of one method: bootstrap interval of its accuracy over seeds, spread over clients at the chosen round,
    area under the curve, the best test round under that name, and what the target cost."""
    chosen = [float(np.mean(list(found.values()))) for found in scores if found]
    low, high = bootstrap(chosen)
    columns: Row = {
        f"{main().id}_bootstrap_low": low,
        f"{main().id}_bootstrap_high": high,
        **(over_clients(scores) if any(len(found) > 1 for found in scores) else {}),
        "area_under_curve": float(np.mean([area_under(rows) for rows in histories])),
        f"best_test_round_{main().id}": _best_test(histories),
    }
    costs = costs_to(histories, target, joules)
    columns |= {f"{name}_to_target": cost.mean if cost.always else None for name, cost in costs.items()}
    return columns | {"seeds_at_target": costs["rounds"].reached}


def _best_test(histories: Sequence[Rows]) -> float | None:
    """The mean of the best test rounds."""
    tops = [best[1] for rows in histories if (best := best_test_round(rows)) is not None]
    return float(np.mean(tops)) if tops else None


def winner(
    rows: Sequence[Mapping[str, JSON]], scores: Mapping[str, Accuracies], measure: str = "accuracy"
) -> Row | None:
    """The method with the best mean score (the highest accuracy) and how it differs from every other, corrected for
    their number.

    Centralised training is no federated method and cannot win. Differences are the winner minus the other. ``tied``
    names the methods that are not significantly different from it, best first: any of them may be the best. None
    without a method to choose.
    """
    able = [row for row in rows if row["kind"] != "centralised" and row.get(measure) is not None]
    means = {row["method"]: row[measure] for row in able}
    if not means:
        return None
    ordered = sorted(means, key=means.__getitem__, reverse=main().higher_is_better)
    best = ordered[0]
    found = told({name: against(scores[name], scores[best]) for name in means if name != best})
    tied = [name for name in ordered[1:] if not found[name]["significant"]]
    return {"method": best, "versus": found, "tied": tied}


def apart(won: Mapping[str, JSON], shown: Mapping[str, str]) -> str:
    """Which methods are not significantly different from the best one, in a sentence; ``shown`` maps methods to display
    names."""
    others, tied = len(won["versus"]), [shown[name] for name in won["tied"]]
    if next(iter(won["versus"].values()))["seeds"] < 2:
        return "One seed is not enough to rank methods: any of them may be the best."
    if not tied:
        which = "the other method" if others == 1 else f"each of the {others} other methods"
        return f"It is significantly {'above' if main().higher_is_better else 'below'} {which}."
    way = "above" if main().higher_is_better else "below"
    listed = tied[0] if len(tied) == 1 else f"{', '.join(tied[:-1])} and {tied[-1]}"
    if len(tied) == others:
        return f"No method is significantly different from it: {listed} may be as good."
    rest = "the other method" if others == len(tied) + 1 else f"the other {others - len(tied)} methods"
    return f"It is not significantly different from {listed}, and significantly {way} {rest}."
