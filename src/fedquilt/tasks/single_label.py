"""One class for each row: what everything else takes for granted, as a task like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.params import Params
from fedquilt.core.plain import Array, Ints
from fedquilt.core.table import Batch
from fedquilt.data.checks import count_classes, label_column
from fedquilt.metrics.classify import ClassifyWith, Scores, classify, scores_of
from fedquilt.metrics.table import Metric, metric, statistics_in_use
from fedquilt.pieces.objectives import cross_entropy, row_losses
from fedquilt.tasks.task import Task


@dataclass(frozen=True)
class SingleLabel(Task):
    """Predict the class of a row: labels [rows], whole numbers from 0; a model makes a score of each class.

    Args:
        main: The metric that methods are compared by: 'accuracy', 'balanced_accuracy' or 'macro_f1'.

    Example:
        >>> import torch
        >>> SingleLabel().outputs(torch.tensor([0, 2, 1]))
        3
    """

    kind: ClassVar[str] = "classification"
    name: ClassVar[str] = "classification"
    trivial: ClassVar[str] = "majority class"
    numeric: ClassVar[bool] = False
    known: ClassVar[tuple[Metric, ...]] = tuple(map(metric, ("accuracy", "balanced_accuracy", "macro_f1")))
    main: str = "accuracy"

    def targets(self, y: object, where: str) -> Tensor:
        """Labels as int64, whole and not negative."""
        return label_column(y, where)

    def outputs(self, y: Tensor) -> int:
        """The largest label plus one."""
        return count_classes([y], None)

    def strata(self, y: Array) -> Ints:
        """The labels."""
        return np.asarray(y, np.int64)

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """-log softmax(scores)[label] of each row."""
        return row_losses(out, y)

    def __call__(self, out: object, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        return cross_entropy(out, params, fixed, batch)

    def constant(self, y: Tensor) -> Tensor:
        """How often each class is there."""
        return torch.bincount(y).float()

    def score(self) -> Callable[..., Any]:
        """By class."""
        own = statistics_in_use()
        return ClassifyWith(tuple(own.items())) if own else classify

    def scores(self, out: Tensor, y: Tensor) -> Scores:
        """The counts of these rows; classes that no training sample has are never called."""
        lacking = max(int(y.max()) + 1 - out.shape[1], 0) if len(y) else 0
        return scores_of(F.pad(out.float(), (0, lacking), value=-math.inf), y)
