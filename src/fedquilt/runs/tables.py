"""The table of a comparison, from the folders of its finished runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId
from fedquilt.runs.clusters import LOG
from fedquilt.runs.majority import at_majority
from fedquilt.runs.statistics.beside import beside, winner
from fedquilt.runs.statistics.intervals import interval
from fedquilt.runs.statistics.paired import Paired, versus
from fedquilt.runs.statistics.targets import MEGABYTE
from fedquilt.runs.views import RunView

FRAME = ("local_only", "centralised")  # the lower and the upper frame of a table
_FIRST = dict.fromkeys((*Paired.__dataclass_fields__, "significant"))  # the first method is not compared with itself


def by_label(views: Sequence[RunView]) -> dict[str, list[RunView]]:
    """The runs of each method, in their order."""
    found: dict[str, list[RunView]] = {}
    for view in views:
        found.setdefault(view.label, []).append(view)
    return found


def summary_of(views: Sequence[RunView], constant: Mapping[ClientId, float], target: float) -> dict[str, Any]:
    """Rows of all methods and the winner, from finished runs of equal seeds.

    ``constant`` is each client's accuracy with its commonest label; without it nothing is said of the majority class.
    """
    methods = by_label(views)
    scores = {label: [view.chosen for view in group] for label, group in methods.items()}
    pairs = versus(scores)
    constants = versus({"": [constant] * len(next(iter(scores.values()))), **scores}) if constant else {}
    rows = [
        row(label, [view.result for view in group])
        | {"kind": group[0].kind, "frame": group[0].kind in FRAME}
        | beside([view.rounds for view in group], scores[label], target, [view.joules for view in group])
        | clusters_found([view.rows(LOG) for view in group])
        | {f"versus_first_{name}": value for name, value in pairs.get(label, _FIRST).items()}
        | {f"versus_majority_{name}": value for name, value in constants.get(label, _FIRST).items()}
        for label, group in methods.items()
    ]
    first = next(iter(methods.values()))
    return {
        "seeds": [view.seed for view in first],
        "clients": len({c for found in scores[first[0].label] for c in found}),
        "chosen_on": "validation" if _validated(views) else "last round (there are no validation rows)",
        "majority_class": float(np.mean(list(constant.values()))) if constant else _told(views),
        "target": target,
        "rows": rows,
        "winner": winner(rows, scores),
        "doubts": {label: said for label, group in methods.items()
                   if (said := at_majority([view.result for view in group])) is not None},
    }  # fmt: skip


def _validated(views: Sequence[RunView]) -> bool:
    return any("valid_accuracy" in view.result.get("best", {}) for view in views)


def _told(views: Sequence[RunView]) -> float:
    """The accuracy of the majority class as runs wrote it."""
    known = [v for view in views if (v := view.result.get("majority_class")) is not None]
    return float(known[0]) if known else math.nan


def clusters_found(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
    """How many clusters there were at the end, how many clients were in one (of how many), and how well these meet
    planted groups (ARI): means over seeds."""
    ends = [log[-1] for log in logs if log]
    planted = [end["ari"] for end in ends if "ari" in end]
    return {
        "clusters": float(np.mean([end["k"] for end in ends])) if ends else None,
        "ari": float(np.mean(planted)) if planted else None,
        "placed": float(np.mean([end["clients"] for end in ends])) if ends else None,
        "placed_of": float(np.mean(known)) if (known := [end["of"] for end in ends if "of" in end]) else None,
    }


def row(label: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One method's line: test numbers at the round that validation chose, over seeds."""
    accuracy = interval([r["best"]["test_accuracy"] for r in results])
    worst = interval([r["best"]["test_accuracy_worst10"] for r in results])
    balanced = interval([r["best"]["test_balanced_accuracy"] for r in results])
    macro = interval([r["best"]["test_macro_f1"] for r in results])
    return {
        "method": label,
        "accuracy": accuracy.mean, "accuracy_half_95": accuracy.half,
        "worst10": worst.mean, "worst10_half_95": worst.half,
        "balanced_accuracy": balanced.mean, "balanced_accuracy_half_95": balanced.half,
        "macro_f1": macro.mean, "macro_f1_half_95": macro.half,
        "last_round_accuracy": float(np.mean([r["last"]["test_accuracy"] for r in results])),
        "updates": float(np.mean([r.get("updates", math.nan) for r in results])),
        "megabytes_up": float(np.mean([r["bytes_up"] for r in results])) / MEGABYTE,
        "megabytes_down": float(np.mean([r["bytes_down"] for r in results])) / MEGABYTE,
        "seconds": float(np.mean([r["seconds"] for r in results])),
        "digests": [r["digest"] for r in results],
    }  # fmt: skip


def as_csv(rows: Sequence[Mapping[str, Any]], majority: float) -> str:
    """The rows below that of the majority class."""
    text = io.StringIO()
    names = [n for n in rows[0] if n != "digests"]
    writer = csv.DictWriter(text, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerow({"method": "majority class", "accuracy": majority})
    writer.writerows(rows)
    return text.getvalue()
