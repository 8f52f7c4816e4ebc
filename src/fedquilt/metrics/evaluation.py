"""From scores per client to the numbers of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId
from fedquilt.metrics.support import Array, rarest
from fedquilt.metrics.table import ROWS_HALF, Counts, Metric, main, metrics, together, values

MODELS = ("deployed", "global")


def summarise(evaluations: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of an evaluation, of each metric of :mod:`fedquilt.metrics.table`.

    ``<split>_accuracy`` is the mean over clients of the accuracy of the model each would use, on its own samples;
    ``_pooled`` counts rows instead of clients; ``_worst10`` is the mean of the worst 10 % of clients. The same
    with the prefix ``global_`` for the global model; of one with several modes also ``global_<split>_accuracy_<mode>``.
    Of test scores of the model each would use, ``_rows_half_95`` is half of the 95 % interval that the number of test
    rows leaves.
    """
    numbers: dict[str, float] = {}
    for model in MODELS:
        prefix = "" if model == "deployed" else "global_"
        for split in ("valid", "test"):
            scores = [e[model][split] for e in evaluations.values() if split in e.get(model, {})]
            if scores:
                counts = Counts.of(scores)
                found = values(counts)
                told = _numbers(found, counts.rows, together(counts))
                numbers |= {f"{prefix}{split}_{k}": v for k, v in told.items()}
                if (model, split) == ("deployed", "test"):
                    numbers |= {f"test_{k}{ROWS_HALF}": v for k, v in _halves(found, counts).items()}
    return numbers | _by_mode(evaluations)


def _by_mode(evaluations: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    """Means over clients of the main metric, of every mode that evaluations told, by split."""
    first = main().id
    numbers: dict[str, float] = {}
    for name in dict.fromkeys(n for e in evaluations.values() for n in e if n.startswith("global.")):
        for split in ("valid", "test"):
            scores = [e[name][split] for e in evaluations.values() if split in e.get(name, {})]
            if scores and first in (found := values(Counts.of(scores))):
                numbers[f"global_{split}_{first}_{name.removeprefix('global.')}"] = float(found[first].mean())
    return numbers


def _halves(found: Mapping[str, Array], counts: Counts) -> dict[str, float]:
    """Half of the 95 % interval of each mean over clients, from the counts of their rows."""
    halves: dict[str, float | None] = {}
    for m in metrics():
        if m.id in found:
            known = np.flatnonzero(_there(found[m.id]))
            halves[m.id] = m.half(counts, known)
            if "worst10" in m.summaries:
                order = np.argsort(_badness(m, np.ma.getdata(found[m.id])[known]), kind="stable")
                halves[f"{m.id}_worst10"] = m.half(counts, known[order[: tenth(len(order))]])
    return {name: half for name, half in halves.items() if half is not None}


def rows_half(score: Any) -> float | None:
    """Half of the 95 % interval of one value of the main metric; None for scores that it does not apply to."""
    first, counts = main(), Counts.of([score])
    return first.half(counts, np.arange(1)) if first.applies(counts) else None


def common_numbers(name: str, score: Any) -> dict[str, float]:
    """The numbers of the server's common rows, with the prefix ``name``; of test samples also half of the 95 % interval
    of the main metric."""
    row, half = score_row(score), rows_half(score) if name == "common_test" else None
    found = {f"{name}_{m.id}": row[m.id] for m in metrics() if "common" in m.summaries and m.id in row}
    return found if half is None else {**found, f"{name}_{main().id}{ROWS_HALF}": half}


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same numbers for one model and split, from the rows that :func:`client_rows` made of all clients."""
    names = [m.id for m in metrics() if all(m.id in row for row in rows)]
    columns = {name: _column([row[name] for row in rows]) for name in names}
    return _numbers(columns, np.array([row.get("rows", 1) for row in rows], dtype=np.float64))


def _column(values: Sequence[float | None]) -> np.ma.MaskedArray[Any, Any]:
    """One number of all clients; those that have none are left out of means."""
    return np.ma.masked_array(np.array(values, dtype=np.float64), mask=[value is None for value in values])


def _numbers(found: Mapping[str, Array], rows: Array, whole: Mapping[str, float] | None = None) -> dict[str, float]:
    """Means over clients and the other summaries that each metric has, over the clients that have a value; ``whole``
    are the values on all rows together that are no means over rows."""
    numbers: dict[str, float] = {}
    for m in metrics():
        if m.id in found:
            known = _there(found[m.id])
            column, counted = np.ma.getdata(found[m.id])[known], rows[known]
            if len(column):
                numbers[m.id] = float(column.mean())
                able = [s for s in m.summaries if s in _SUMMARIES and (s != "pooled" or m.pooled is None)]
                numbers |= {f"{m.id}_{s}": _SUMMARIES[s](m, column, counted) for s in able}
            if m.id in (whole or {}):
                numbers[f"{m.id}_pooled"] = (whole or {})[m.id]
    return numbers


def _there(column: Array) -> Array:
    """Which clients have a value."""
    there: Array = ~np.ma.getmaskarray(column)
    return there


def worst_tenth(accuracy: Array) -> float:
    """The mean of the lowest tenth (at least one) of the clients' accuracies."""
    return float(np.sort(accuracy)[: tenth(len(accuracy))].mean())


def tenth(clients: int) -> int:
    """How many a tenth of the clients are: at least one."""
    return max(1, math.ceil(clients / 10))


def _badness(m: Metric, column: Array) -> Array:
    """The same values, such that the worst are the lowest."""
    return column if m.higher_is_better else -column


def _worst(m: Metric, column: Array, rows: Array) -> float:
    worst = worst_tenth(_badness(m, column))
    return worst if m.higher_is_better else -worst


_SUMMARIES: dict[str, Callable[[Metric, Array, Array], float]] = {
    "pooled": lambda m, column, rows: float((column * rows).sum() / rows.sum()),
    "std": lambda m, column, rows: float(column.std()),
    "worst10": _worst,
}


def client_rows(round: int, evaluations: Mapping[ClientId, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per client, model and split; of scores that classify with what their intervals rest on."""
    keys, scores = [], []
    for client, evaluation in evaluations.items():
        for model in MODELS:
            for split, score in evaluation.get(model, {}).items():
                keys.append({"round": round, "client": client, "model": model, "split": split})
                scores.append(score)
    lists = _columns(Counts.of(scores)) if scores else {}
    return [{**key, **{name: column[i] for name, column in lists.items()}} for i, key in enumerate(keys)]


def _columns(counts: Counts) -> dict[str, list[float | None]]:
    columns = {"rows": counts.rows, **values(counts)}
    for m in metrics():
        columns |= m.spread(counts) if m.id in columns else {}
    if counts.kind == "classification":
        columns["rarest"] = rarest(counts.support)
    return {name: column.tolist() for name, column in columns.items()}


def score_row(score: Any) -> dict[str, float]:
    """A score as plain numbers."""
    counts = Counts.of([score])
    columns = {"rows": counts.rows, **values(counts)}
    return {name: float(column[0]) for name, column in columns.items() if not np.ma.is_masked(column[0])}
