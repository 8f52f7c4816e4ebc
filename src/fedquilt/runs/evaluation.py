"""From scores per client to the numbers of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedquilt.core.table import ClientId

MODELS = ("deployed", "global")


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
                numbers |= {f"{prefix}{split}_{k}": v for k, v in _numbers(scores).items()}
    return numbers


def _numbers(scores: Sequence[Any]) -> dict[str, float]:
    accuracy = np.array([s.accuracy for s in scores])
    rows = sum(s.rows for s in scores)
    return {
        "accuracy": float(accuracy.mean()),
        "accuracy_pooled": sum(int(s.correct.sum()) for s in scores) / rows,
        "accuracy_std": float(accuracy.std()),
        "accuracy_worst10": worst_tenth(accuracy),
        "balanced_accuracy": float(np.mean([s.balanced_accuracy for s in scores])),
        "macro_f1": float(np.mean([s.macro_f1 for s in scores])),
        "loss": float(np.mean([s.loss for s in scores])),
    }


def worst_tenth(accuracy: np.ndarray[Any, Any]) -> float:
    """The mean of the lowest tenth (at least one) of the clients' accuracies."""
    count = max(1, math.ceil(len(accuracy) / 10))
    return float(np.sort(accuracy)[:count].mean())


def client_rows(round: int, exams: Mapping[ClientId, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per client, model and split."""
    rows = []
    for client, exam in exams.items():
        for model in MODELS:
            for split, score in exam.get(model, {}).items():
                rows.append({"round": round, "client": client, "model": model, "split": split, **score_row(score)})
    return rows


def score_row(score: Any) -> dict[str, Any]:
    """A score as plain numbers."""
    return {
        "rows": score.rows, "accuracy": score.accuracy, "balanced_accuracy": score.balanced_accuracy,
        "macro_f1": score.macro_f1, "loss": score.loss,
    }  # fmt: skip
