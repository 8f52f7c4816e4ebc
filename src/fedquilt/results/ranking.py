"""The points of a sweep as they lie in its folder, best first by validation accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedquilt.core.plain import Row
from fedquilt.metrics.table import best_of, main
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import read_json
from fedquilt.storage.finished import on_validation
from fedquilt.storage.withheld import score_at

FILE = "sweep.json"


def ranking(folder: Path) -> list[Row]:
    """A row for each point, in the order they were tried.

    ``valid`` is the mean over seeds of the validation accuracy at each seed's chosen round; None unless all seeds are
    finished. The ``best`` point has the best; only of that one test numbers are told, which chose nothing.
    """
    plan = read_json(folder / FILE)
    rows = [_row(folder, number, point) for number, point in enumerate(plan.get("points", []))]
    scored = [row for row in rows if row["valid"] is not None]
    if scored:
        top = best_of(row["valid"] for row in scored)
        best = next(row for row in scored if row["valid"] == top)  # of equals the first
        tests = [_test(folder / name) for name in plan["points"][best["point"]]["folders"]]
        found = interval([value for value in tests if value is not None])
        best |= {"best": True, "test": found.mean, "test_half_95": found.half}
    return rows


def _test(folder: Path) -> float | None:
    """The test accuracy of a run at its chosen round, also where it was withheld."""
    result = read_json(folder / "result.json")
    name = f"test_{main().id}"
    known: float | None = result.get("best", {}).get(name)
    return score_at(folder, result.get("best_round", 0), name) if known is None else known


def _results(folder: Path, point: Row) -> list[Row]:
    return [result for name in point["folders"] if (result := read_json(folder / name / "result.json"))]


def _row(folder: Path, number: int, point: Row) -> Row:
    results = _results(folder, point)
    scores = [v for r in results if (v := on_validation(r["best"], main().id)) is not None]
    row = {"point": number, "label": point["label"], "values": point["values"], "best": False, "seeds": len(scores)}
    if len(scores) < len(point["folders"]):
        return row | dict.fromkeys(("valid", "valid_half_95", "rounds", "megabytes", "seconds"))
    span = interval(scores)
    return row | {
        "valid": span.mean,
        "valid_half_95": span.half,
        "rounds": float(np.mean([r["best_round"] for r in results])),
        "megabytes": float(np.mean([r["bytes_up"] + r["bytes_down"] for r in results])) / MEGABYTE,
        "seconds": float(np.mean([r["seconds"] for r in results])),
    }


def best_first(rows: list[Row]) -> list[Row]:
    """Sorted by the score on validation samples; those without one at the end."""
    sign = -1.0 if main().higher_is_better else 1.0
    return sorted(rows, key=lambda row: (row["valid"] is None, sign * (row["valid"] or 0.0)))
