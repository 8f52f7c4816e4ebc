"""What belongs beside a mean accuracy in a table, and what may be said of the method at its top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.runs.statistics.intervals import bootstrap
from fedquilt.runs.statistics.paired import Accuracies, against, told
from fedquilt.runs.statistics.spread import over_clients
from fedquilt.runs.statistics.targets import Rows, area_under, best_test_round, costs_to


def beside(
    histories: Sequence[Rows], scores: Accuracies, target: float, joules: Sequence[Mapping[int, float] | None] = ()
) -> dict[str, Any]:
    """Columns of one method: bootstrap interval of its accuracy over seeds, spread over clients at the chosen round,
    area under the curve, the best test round under that name, and what the target cost."""
    chosen = [float(np.mean(list(found.values()))) for found in scores if found]
    low, high = bootstrap(chosen)
    tops = [best for rows in histories if (best := best_test_round(rows)) is not None]
    columns: dict[str, Any] = {
        "accuracy_bootstrap_low": low, "accuracy_bootstrap_high": high,
        **over_clients(scores),
        "area_under_curve": float(np.mean([area_under(rows) for rows in histories])),
        "best_test_round_accuracy": float(np.mean([accuracy for _, accuracy in tops])) if tops else None,
    }  # fmt: skip
    costs = costs_to(histories, target, joules)
    columns |= {f"{name}_to_target": cost.mean if cost.always else None for name, cost in costs.items()}
    return columns | {"seeds_at_target": costs["rounds"].reached}


def winner(rows: Sequence[Mapping[str, Any]], scores: Mapping[str, Accuracies]) -> dict[str, Any] | None:
    """The method with the highest mean accuracy and how it differs from every other, corrected for their number.

    Centralised training is no federated method and cannot win. Differences are the winner minus the other. None without
    a method to choose.
    """
    able = [row for row in rows if row["kind"] != "centralised"]
    if not able:
        return None
    best = max(able, key=lambda row: row["accuracy"])["method"]
    others = [row["method"] for row in able if row["method"] != best]
    return {"method": best, "versus": told({name: against(scores[name], scores[best]) for name in others})}
