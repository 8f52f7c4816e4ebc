"""Scores of a classifier, kept as counts so that they add up over clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.errors import InputError
from fedquilt.core.params import Params
from fedquilt.core.record import record
from fedquilt.core.table import Batch, Table

MOST_ROWS = 10**9  # of one client, from elsewhere
ROWS_PER_BLOCK = 100  # small blocks stay in the cache: faster than large ones on CPUs


@record
class Scores:
    """Sums over rows: cross-entropy, and per class how many rows there are, are right, and are so called."""

    rows: int
    loss_sum: float
    support: Tensor
    correct: Tensor
    called: Tensor

    def check(self) -> None:
        """Raise unless these can be somebody's scores; for those that come from elsewhere."""
        counts = (self.support, self.correct, self.called)
        sound = type(self.rows) is int and 0 < self.rows <= MOST_ROWS and type(self.loss_sum) is float
        if not sound or not all(isinstance(c, Tensor) and c.dtype == torch.int64 and c.dim() == 1 for c in counts):
            raise InputError("malformed scores: their kinds of numbers")
        if len({len(c) for c in counts}) != 1 or bool((torch.stack(counts) < 0).any()):
            raise InputError("malformed scores: their counts")
        most = torch.minimum(self.support, self.called)
        if {int(self.support.sum()), int(self.called.sum())} != {self.rows} or bool((self.correct > most).any()):
            raise InputError("malformed scores: their counts do not add up")

    @property
    def loss(self) -> float:
        """Mean cross-entropy per row."""
        return self.loss_sum / max(self.rows, 1)

    @property
    def accuracy(self) -> float:
        """Share of rows that are right."""
        return int(self.correct.sum()) / max(self.rows, 1)

    @property
    def balanced_accuracy(self) -> float:
        """Mean over the classes present of the share that is right."""
        here = self.support > 0
        return float((self.correct[here] / self.support[here]).mean()) if bool(here.any()) else 0.0

    @property
    def macro_f1(self) -> float:
        """Mean over the classes present or called of 2 * correct / (support + called)."""
        both = self.support + self.called
        here = both > 0
        return float((2 * self.correct[here] / both[here]).mean()) if bool(here.any()) else 0.0

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            self.rows + other.rows, self.loss_sum + other.loss_sum, _plus(self.support, other.support),
            _plus(self.correct, other.correct), _plus(self.called, other.called),
        )  # fmt: skip


def _plus(a: Tensor, b: Tensor) -> Tensor:
    width = max(len(a), len(b))
    return F.pad(a, (0, width - len(a))) + F.pad(b, (0, width - len(b)))


def classify(predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Scores:
    """Score a model on a table, in blocks of at most ``ROWS_PER_BLOCK`` rows."""
    with torch.inference_mode():
        return reduce(Scores.__add__, (_block(predict(params, b), b.y) for b in table.blocks(ROWS_PER_BLOCK)))


def _block(logits: Tensor, y: Tensor) -> Scores:
    classes = logits.shape[1]
    loss = F.cross_entropy(logits, y, reduction="sum")
    answer, label = logits.argmax(1).numpy(), y.numpy()

    def count(values: np.ndarray[Any, Any]) -> Tensor:  # numpy counts small arrays several times faster
        return torch.from_numpy(np.bincount(values, minlength=classes))

    return Scores(len(label), float(loss), count(label), count(label[answer == label]), count(answer))
