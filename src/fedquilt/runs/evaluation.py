"""From scores per client to the numbers of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId

MODELS = ("deployed", "global")
MEASURES = ("rows", "accuracy", "balanced_accuracy", "macro_f1", "loss")


def summarise(exams: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of an evaluation.

    ``<split>_accuracy`` is the mean over clients of the accuracy of the model each would use, on its own rows;
    ``_pooled`` counts rows instead of clients; ``_worst10`` is the mean of the worst tenth of the clients. The same
    with the prefix ``global_`` for the global model.
    """
    numbers: dict[str, float] = {}
    for model in MODELS:
        prefix = "" if model == "deployed" else "global_"
        for split in ("valid", "test"):
            scores = [e[model][split] for e in exams.values() if split in e.get(model, {})]
            if scores:
                numbers |= {f"{prefix}{split}_{k}": v for k, v in _numbers(_table(scores)).items()}
    return numbers


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same numbers for one model and split, from the rows that :func:`client_rows` made of all clients."""
    names = [name for name in MEASURES if all(row.get(name) is not None for row in rows)]
    return _numbers({name: np.array([row[name] for row in rows], dtype=np.float64) for name in names})


def _numbers(table: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    if "accuracy" not in table:
        return {"loss": float(table["loss"].mean())}
    return {
        "accuracy": float(table["accuracy"].mean()),
        "accuracy_pooled": float((table["accuracy"] * table["rows"]).sum() / table["rows"].sum()),
        "accuracy_std": float(table["accuracy"].std()),
        "accuracy_worst10": worst_tenth(table["accuracy"]),
        "balanced_accuracy": float(table["balanced_accuracy"].mean()),
        "macro_f1": float(table["macro_f1"].mean()),
        "loss": float(table["loss"].mean()),
    }


def _table(scores: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The measures of :class:`fedquilt.metrics.classify.Scores` for many clients at once; those of models that do not
    classify are rows and loss."""
    rows = np.array([s.rows for s in scores], dtype=np.float64)
    loss = np.array([s.loss_sum for s in scores]) / rows
    if not hasattr(scores[0], "support"):
        return {"rows": rows, "loss": loss}
    support, correct, called = (_stacked([getattr(s, n) for s in scores]) for n in ("support", "correct", "called"))
    both = support + called
    return {
        "rows": rows,
        "accuracy": correct.sum(1) / rows,
        "balanced_accuracy": _mean_where(correct / np.maximum(support, 1), support > 0),
        "macro_f1": _mean_where(2 * correct / np.maximum(both, 1), both > 0),
        "loss": loss,
    }


def _stacked(counts: Sequence[Any]) -> np.ndarray[Any, Any]:
    width = max(len(c) for c in counts)
    return np.stack([np.pad(c.numpy(), (0, width - len(c))) if len(c) < width else c.numpy() for c in counts])


def _mean_where(values: np.ndarray[Any, Any], here: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    means: np.ndarray[Any, Any] = (values * here).sum(1) / np.maximum(here.sum(1), 1)
    return means


def worst_tenth(accuracy: np.ndarray[Any, Any]) -> float:
    """The mean of the lowest tenth (at least one) of the clients' accuracies."""
    count = max(1, math.ceil(len(accuracy) / 10))
    return float(np.sort(accuracy)[:count].mean())


def client_rows(round: int, exams: Mapping[ClientId, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per client, model and split."""
    keys, scores = [], []
    for client, exam in exams.items():
        for model in MODELS:
            for split, score in exam.get(model, {}).items():
                keys.append({"round": round, "client": client, "model": model, "split": split})
                scores.append(score)
    if not scores:
        return []
    table = {name: column.tolist() for name, column in _table(scores).items()}
    return [{**key, **{name: column[i] for name, column in table.items()}} for i, key in enumerate(keys)]


def score_row(score: Any) -> dict[str, float]:
    """A score as plain numbers."""
    return {name: float(column[0]) for name, column in _table([score]).items()}
