"""The shape of a task: everything that all of them have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.net import logits_of
from fedquilt.core.params import Params
from fedquilt.core.plain import Array, Ints, Row
from fedquilt.core.table import Batch, Table
from fedquilt.errors import InputError, did_you_mean
from fedquilt.metrics.summed import Statistic, Summed, Sums
from fedquilt.metrics.table import Counts, Metric, statistics_in_use
from fedquilt.pieces.objectives import weighted_mean

STRATA = 10  # that a number is cut into, for partitions by label


@dataclass(frozen=True)
class ScoreOf:
    """Scores models by a task.

    Args:
        task: The task.
        own: Statistics that only this process may know of, by their ids.
    """

    task: Task
    own: tuple[tuple[str, Statistic], ...] = ()

    def __call__(self, predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Summed:
        """Score a model on a table."""
        return self.task.sums(dict(self.own)).score(predict, params, table)


@dataclass(frozen=True)
class Task:
    """What targets are, what a model makes of a row, and by what it is judged.

    One of your own is a frozen dataclass below this one or below one of the library's, and often changes no more than
    ``losses``. It is a term of an objective itself: its value is the mean loss of a batch.

    Args:
        main: The metric that methods are compared by, and the best round is chosen by if nothing else is asked for.

    Attributes:
        kind: Of its score records: which metrics can be computed from them.
        name: What people read.
        trivial: What the answer is called that needs no input.
        numeric: Whether its targets are columns of numbers, not names.
        known: Its metrics, the main one among them.
    """

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    trivial: ClassVar[str] = "constant answer"
    numeric: ClassVar[bool] = True
    known: ClassVar[tuple[Metric, ...]] = ()
    main: str = ""

    def __post_init__(self) -> None:
        names = [m.id for m in self.known]
        if self.main not in names:
            raise InputError(
                f"main should be one of the metrics of {self.name}, {', '.join(names)}, got {self.main!r}"
                f"{did_you_mean(self.main, names, end='.')}"
            )

    # Targets

    def targets(self, y: object, where: str) -> Tensor:
        """Targets as they are stored: checked, one for each row."""
        raise NotImplementedError

    def outputs(self, y: Tensor) -> int:
        """How many numbers a model makes of a row with such targets: one for each of theirs."""
        return 1 if y.dim() == 1 else int(y.shape[1])

    def fitted(self, y: Tensor) -> Task:
        """The task with what it takes from training targets: nothing."""
        return self

    def numbers(self) -> Row:
        """What :meth:`fitted` took, as plain values."""
        return {}

    def strata(self, y: Array) -> Ints:
        """Which tenth of all targets (of their first column) each row belongs to, from 0."""
        first = np.asarray(y, np.float64).reshape(len(y), -1)[:, 0]
        edges = np.unique(np.quantile(first, np.arange(1, STRATA) / STRATA)) if len(first) else np.zeros(0)
        found: Ints = np.searchsorted(edges, first, side="right").astype(np.int64)
        return found

    # Losses

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row."""
        raise NotImplementedError

    def __call__(self, out: object, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        return weighted_mean(self.losses(logits_of(out), batch.y), batch.weight)

    # Scores

    def answers(self, out: Tensor) -> Tensor:
        """Outputs in the units of targets."""
        return out

    def counts(self, answers: Tensor, y: Tensor) -> Tensor:
        """What its metrics are computed from, added up over rows: their ``counts.sums[kind]``."""
        raise NotImplementedError

    def constant(self, y: Tensor) -> Tensor:
        """What a model that ignores its input should make of every row: [outputs]."""
        raise NotImplementedError

    def sums(self, own: Mapping[str, Statistic] | None = None) -> Sums:
        """What is added up over rows: its counts, and the statistics of its metrics and of others."""
        statistics = {m.id: m.statistic for m in self.known if m.statistic is not None}
        return Sums(self.kind, self.losses, self.answers, {self.kind: self.counts, **statistics, **(own or {})})

    def score(self) -> Callable[..., Any]:
        """What scores a model on a table."""
        return ScoreOf(self, tuple(statistics_in_use(self.kind).items()))

    def scores(self, out: Tensor, y: Tensor) -> Any:
        """The score record of these rows."""
        with torch.inference_mode():
            return self.sums().of(out, y)

    def value(self, out: Tensor, y: Tensor) -> float:
        """The main metric of these outputs; NaN where it has no value."""
        if not len(y):
            return math.nan
        counts = Counts.of([self.scores(out, y)])
        found = next(m for m in self.known if m.id == self.main).of(counts)
        return math.nan if np.ma.is_masked(found) else float(found[0])
