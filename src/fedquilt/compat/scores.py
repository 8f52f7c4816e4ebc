"""Scores as PFLlib takes them: accuracy over all rows, micro AUC, cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.params import Params
from fedquilt.core.table import Batch, ClientId, Table
from fedquilt.records.record import record

ROWS_PER_BLOCK = 100


@record
class Grades:
    """One client's: rows, how many are right, summed cross-entropy, micro AUC of the class scores (if there is one)."""

    rows: int
    right: int
    loss_sum: float
    auc: float | None


def grade(predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Grades:
    """Score a model on a table."""
    with torch.inference_mode():
        parts = [(predict(params, batch), batch.y) for batch in table.blocks(ROWS_PER_BLOCK)]
    scores, labels = torch.cat([s for s, _ in parts]), torch.cat([y for _, y in parts])
    right = int((scores.argmax(1) == labels).sum())
    loss = float(F.cross_entropy(scores, labels, reduction="sum"))
    return Grades(len(labels), right, loss, _auc(scores, labels))


def _auc(scores: Tensor, labels: Tensor) -> float | None:
    classes = scores.shape[1]
    if classes < 2 or not bool(torch.isfinite(scores).all()):
        return None
    return float(roc_auc_score(F.one_hot(labels, classes).numpy().ravel(), scores.numpy().ravel()))


@dataclass(frozen=True)
class PFLlibScores:
    """All clients at once.

    ``accuracy``, ``auc`` and ``loss`` count rows; ``std`` is that of the clients' accuracies.
    """

    accuracy: float
    std: float
    auc: float
    loss: float

    @property
    def words(self) -> str:
        """For people."""
        return (
            f"train loss {self.loss:.4f}, test accuracy {self.accuracy:.4f} (std over clients {self.std:.4f}), "
            f"AUC {self.auc:.4f}"
        )


Evaluations = Mapping[ClientId, Mapping[str, Mapping[str, Grades]]]  # by client, model and split


def _grades(evaluations: Evaluations, split: str) -> list[Grades]:
    """Of the clients whose deployed models were graded on this split."""
    return [e["deployed"][split] for e in evaluations.values() if split in e["deployed"]]


def _total(grades: list[Grades], name: str) -> float:
    return float(sum(getattr(one, name) for one in grades))


def evaluation(evaluations: Evaluations) -> PFLlibScores:
    """From each client's grades: on 'test' rows, and on training samples under the name 'valid'."""
    tests, trains = _grades(evaluations, "test"), _grades(evaluations, "valid")
    rows = _total(tests, "rows")
    known = [(g.auc, g.rows) for g in tests if g.auc is not None]
    auc = sum(a * n for a, n in known) / sum(n for _, n in known) if known else float("nan")
    return PFLlibScores(
        _total(tests, "right") / rows,
        float(np.std([g.right / g.rows for g in tests])),
        auc,
        _total(trains, "loss_sum") / _total(trains, "rows"),
    )
