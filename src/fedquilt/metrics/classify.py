"""Scores of a classifier, kept as counts so that they add up over clients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.params import Params
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError
from fedquilt.metrics.own import OfRows
from fedquilt.metrics.table import metrics
from fedquilt.records.record import record

Statistics = Mapping[str, Callable[[Tensor, Tensor], Tensor]]  # what metrics add up themselves, by their ids
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
        if not sound or not all(map(_is_count, counts)):
            raise InputError("malformed scores: their kinds of numbers")
        if len({len(c) for c in counts}) != 1 or bool((torch.stack(counts) < 0).any()):
            raise InputError("malformed scores: their counts")
        self._check_sums()

    def _check_sums(self) -> None:
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

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            self.rows + other.rows,
            self.loss_sum + other.loss_sum,
            _plus(self.support, other.support),
            _plus(self.correct, other.correct),
            _plus(self.called, other.called),
        )


def _is_count(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1


@record
class ScoresAndSums(Scores):
    """The same, with what metrics add up themselves (``Metric.statistic``), while there are such."""

    sums: dict[str, Tensor]

    def check(self) -> None:
        """Raise unless these can be somebody's scores; for those that come from elsewhere."""
        super().check()
        known = statistics()
        if not isinstance(self.sums, dict):
            raise InputError("malformed scores: their sums")
        for name, found in self.sums.items():
            if name not in known:
                raise InputError(f"malformed scores: nothing is known of a metric {str(name)[:40]!r} that has sums")
            empty = known[name](torch.zeros(0, len(self.support)), torch.zeros(0, dtype=torch.int64))
            if not isinstance(found, Tensor) or (found.shape, found.dtype) != (empty.shape, empty.dtype):
                raise InputError(f"malformed scores: the shape of the sums of {name!r}")
            if not bool(torch.isfinite(found).all()):
                raise InputError(f"malformed scores: the sums of {name!r} are not finite")

    def __add__(self, other: Scores) -> Scores:
        counts, sums = super().__add__(other), getattr(other, "sums", {})
        return _with({name: _plus(part, sums[name]) for name, part in self.sums.items() if name in sums}, counts)


def with_sums(sums: dict[str, Tensor], scores: Scores) -> Scores:
    """The scores, with further sums beside those that they have."""
    return _with({**getattr(scores, "sums", {}), **sums}, scores)


def _with(sums: dict[str, Tensor], s: Scores) -> Scores:
    return ScoresAndSums(s.rows, s.loss_sum, s.support, s.correct, s.called, sums) if sums else s


def statistics() -> Statistics:
    """What the metrics that are known add up themselves."""
    return {m.id: m.statistic for m in metrics() if m.statistic is not None}


def _plus(a: Tensor, b: Tensor) -> Tensor:
    shape = [max(sizes) for sizes in zip(a.shape, b.shape, strict=True)]
    return _widened(a, shape) + _widened(b, shape)


def _widened(counts: Tensor, shape: Sequence[int]) -> Tensor:
    """With zeros at the ends of all dimensions."""
    missing = [wide - size for wide, size in zip(shape, counts.shape, strict=True)]
    return F.pad(counts, [n for more in reversed(missing) for n in (0, more)])


def classify(predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Scores:
    """Score a model on a table, in blocks of at most ``ROWS_PER_BLOCK`` rows."""
    return _classified(predict, params, table, statistics())


@dataclass(frozen=True)
class ClassifyWith:
    """The same, also with statistics that only this process may know of.

    Args:
        own: Their ids and functions.
    """

    own: tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...]

    def __call__(self, predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Scores:
        """Score a model on a table."""
        return _classified(predict, params, table, {**statistics(), **dict(self.own)})


def _classified(predict: Callable[[Params, Batch], Tensor], params: Params, table: Table, known: Statistics) -> Scores:
    whole = {name: statistic for name, statistic in known.items() if isinstance(statistic, OfRows)}
    of_blocks = {name: statistic for name, statistic in known.items() if name not in whole}
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.inference_mode():

        def block(batch: Batch) -> Scores:
            logits = predict(params, batch)
            if whole:
                kept.append((logits, batch.y))
            return _block(logits, batch.y, of_blocks)

        found = reduce(operator.add, map(block, table.blocks(ROWS_PER_BLOCK)))
        if not whole:
            return found
        logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
        sums = {name: statistic(logits, labels) for name, statistic in whole.items()}
        return _with({**getattr(found, "sums", {}), **sums}, found)


def scores_of(logits: Tensor, y: Tensor) -> Scores:
    """The counts of these rows."""
    return _block(logits, y, {})


def _block(logits: Tensor, y: Tensor, known: Statistics) -> Scores:
    classes = logits.shape[1]
    loss = F.cross_entropy(logits, y, reduction="sum")
    answer, label = logits.argmax(1).numpy(), y.numpy()

    def count(values: np.ndarray[Any, Any]) -> Tensor:  # numpy counts small arrays several times faster
        return torch.from_numpy(np.bincount(values, minlength=classes))

    counts = Scores(len(label), float(loss), count(label), count(label[answer == label]), count(answer))
    return _with({name: statistic(logits, y) for name, statistic in known.items()}, counts)
