"""From scores per client to the numbers of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId
from fedquilt.metrics.support import (
    Z,
    balanced_variance,
    half_of_mean,
    macro_f1_variance,
    rarest,
    share_variance,
    wilson,
)

MODELS = ("deployed", "global")
MEASURES = ("rows", "accuracy", "balanced_accuracy", "macro_f1", "loss")


def summarise(exams: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of an evaluation.

    ``<split>_accuracy`` is the mean over clients of the accuracy of the model each would use, on its own rows;
    ``_pooled`` counts rows instead of clients; ``_worst10`` is the mean of the worst tenth of the clients. The same
    with the prefix ``global_`` for the global model; of one with several modes also ``global_<split>_accuracy_<mode>``.
    Of test scores of the model each would use, ``_rows_half_95`` is half of the 95 % interval that the number of test
    rows leaves.
    """
    numbers: dict[str, float] = {}
    for model in MODELS:
        prefix = "" if model == "deployed" else "global_"
        for split in ("valid", "test"):
            scores = [e[model][split] for e in exams.values() if split in e.get(model, {})]
            if scores:
                numbers |= {f"{prefix}{split}_{k}": v for k, v in _numbers(_table(scores)).items()}
            if scores and (model, split) == ("deployed", "test") and hasattr(scores[0], "support"):
                numbers |= {f"test_{k}_rows_half_95": v for k, v in _halves(scores).items()}
    return numbers | _by_mode(exams)


def _by_mode(exams: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    """Mean accuracies over clients of every mode that exams told, by split."""
    numbers: dict[str, float] = {}
    for name in dict.fromkeys(n for e in exams.values() for n in e if n.startswith("global.")):
        for split in ("valid", "test"):
            scores = [e[name][split] for e in exams.values() if split in e.get(name, {})]
            if scores and "accuracy" in (found := _numbers(_table(scores))):
                numbers[f"global_{split}_accuracy_{name.removeprefix('global.')}"] = found["accuracy"]
    return numbers


def _halves(scores: Sequence[Any]) -> dict[str, float]:
    """Half of the 95 % interval of each mean over clients, from the counts of their rows."""
    support, correct, called = _counts(scores)
    right, rows = correct.sum(1), support.sum(1)
    accuracy, variance = right / np.maximum(rows, 1), share_variance(right, rows)
    return {
        "accuracy": half_of_mean(variance),
        "accuracy_worst10": half_of_mean(variance[np.argsort(accuracy, kind="stable")[: tenth(len(accuracy))]]),
        "balanced_accuracy": half_of_mean(balanced_variance(correct, support)),
        "macro_f1": half_of_mean(macro_f1_variance(correct, support, called)),
    }


def rows_half(score: Any) -> float | None:
    """Half of the 95 % interval of one accuracy; None for models that do not classify."""
    if not hasattr(score, "support"):
        return None
    return half_of_mean(share_variance(np.array([int(score.correct.sum())]), np.array([score.rows])))


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
    support, correct, called = _counts(scores)
    both = support + called
    return {
        "rows": rows,
        "accuracy": correct.sum(1) / rows,
        "balanced_accuracy": _mean_where(correct / np.maximum(support, 1), support > 0),
        "macro_f1": _mean_where(2 * correct / np.maximum(both, 1), both > 0),
        "loss": loss,
    }


def _counts(scores: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """[clients, classes] of rows, of those that are right, and of those so called."""
    return tuple(_stacked([getattr(s, n) for s in scores]) for n in ("support", "correct", "called"))


def _stacked(counts: Sequence[Any]) -> np.ndarray[Any, Any]:
    width = max(len(c) for c in counts)
    return np.stack([np.pad(c.numpy(), (0, width - len(c))) if len(c) < width else c.numpy() for c in counts])


def _mean_where(values: np.ndarray[Any, Any], here: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    means: np.ndarray[Any, Any] = (values * here).sum(1) / np.maximum(here.sum(1), 1)
    return means


def worst_tenth(accuracy: np.ndarray[Any, Any]) -> float:
    """The mean of the lowest tenth (at least one) of the clients' accuracies."""
    return float(np.sort(accuracy)[: tenth(len(accuracy))].mean())


def tenth(clients: int) -> int:
    """How many a tenth of the clients are: at least one."""
    return max(1, math.ceil(clients / 10))


def client_rows(round: int, exams: Mapping[ClientId, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per client, model and split; of scores that classify with what their intervals rest on."""
    keys, scores = [], []
    for client, exam in exams.items():
        for model in MODELS:
            for split, score in exam.get(model, {}).items():
                keys.append({"round": round, "client": client, "model": model, "split": split})
                scores.append(score)
    if not scores:
        return []
    table = {name: column.tolist() for name, column in {**_table(scores), **_sureness(scores)}.items()}
    return [{**key, **{name: column[i] for name, column in table.items()}} for i, key in enumerate(keys)]


def _sureness(scores: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Wilson's interval of each client's accuracy, half of the intervals of its macro scores, and how many rows it has
    of its rarest class."""
    if not hasattr(scores[0], "support"):
        return {}
    support, correct, called = _counts(scores)
    low, high = wilson(correct.sum(1), support.sum(1))
    return {
        "accuracy_low": low, "accuracy_high": high,
        "balanced_accuracy_half_95": Z * np.sqrt(balanced_variance(correct, support)),
        "macro_f1_half_95": Z * np.sqrt(macro_f1_variance(correct, support, called)),
        "rarest": rarest(support),
    }  # fmt: skip


def score_row(score: Any) -> dict[str, float]:
    """A score as plain numbers."""
    return {name: float(column[0]) for name, column in _table([score]).items()}
